# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""GDRCopy from its source archive: gdrdrv by DKMS against the installed driver, and the library."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from ansible_collections.epfleet.expert_parallel.plugins.module_utils import dkms, fetch
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.dkms import (
    first_error,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.gdrcopy_sanity import (
    PROGRAM,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.record import (
    write_atomically,
)

if TYPE_CHECKING:
    from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.root import (
        HostRoot,
    )

RunCommand = Callable[..., Tuple[int, str, str]]
MODULE = "gdrdrv"
PREFIX = "/usr/local"
_LOADER = "/etc/ld.so.conf.d/epfleet-gdrcopy.conf"
_MARKER = ".epfleet.json"
_GPL = re.compile(r"MODULE_LICENSE\s*\(\s*\"[^\"]*GPL")
_DKMS = """\
PACKAGE_NAME="gdrdrv"
PACKAGE_VERSION="{version}"
BUILT_MODULE_NAME[0]="gdrdrv"
DEST_MODULE_LOCATION[0]="/updates/dkms"
AUTOINSTALL="yes"
MAKE[0]="'make' KVER=$kernelver CONF_SCRIPT_DIR=scripts \\
  NVIDIA_SRC_DIR={driver} NVIDIA_IS_OPENSOURCE={opensource}"
"""


class GdrcopyError(Exception):
    """Why GDRCopy could not be built; says what to do."""


class Driver(NamedTuple):
    """The installed driver's sources: where its headers are, and whether it is the open flavour."""

    directory: str
    opensource: bool


def driver(host: HostRoot) -> Driver:
    """Find the sources of the installed driver; a stale second version's are not taken."""
    found = sorted(
        os.path.dirname(path)
        for pattern in ("/usr/src/nvidia-*/nv-p2p.h", "/usr/src/nvidia-*/*/nv-p2p.h")
        for path in host.glob(pattern)
    )
    known = {source.version for source in dkms.sources(host) if source.name.startswith("nvidia")}
    if len(found) > 1 and known:
        found = [path for path in found if any(f"-{version}" in path for version in known)]
    if len(found) != 1:
        raise GdrcopyError(
            "gdrdrv is built against the driver's sources, and this host has "
            + (f"several: {', '.join(found)}." if found else "none under /usr/src/nvidia-*.")
            + " Install the driver's source package of the version that is in use (precompiled"
            " drivers: nvidia-kernel-source-*), and no other."
        )
    texts = (host.text(path) or "" for path in host.glob(found[0] + "/*.c"))
    return Driver(found[0], any(_GPL.search(text) for text in texts))


def wanted(version: str, checksum: str, built_against: Driver, cuda: str = "") -> Dict[str, Any]:
    """What the marker of a finished installation says; ``cuda`` is the folder of a toolkit."""
    return {
        "version": version,
        "checksum": checksum,
        "driver": built_against.directory,
        "opensource": built_against.opensource,
        **({"cuda": cuda} if cuda else {}),
    }


def source_directory(version: str) -> str:
    """Where DKMS has the sources."""
    return f"/usr/src/{MODULE}-{version}"


def installed(host: HostRoot) -> Optional[Dict[str, Any]]:
    """The marker of the finished installation; None when there is none."""
    for path in host.glob(f"/usr/src/{MODULE}-*/{_MARKER}"):
        try:
            content = json.loads(host.text(path) or "")
        except ValueError:
            continue
        if isinstance(content, dict):
            return content
    return None


def is_current(host: HostRoot, asked: Dict[str, Any]) -> bool:
    """Whether everything of the installation is there."""
    marker = installed(host)
    if marker is None or any(marker.get(key) != value for key, value in asked.items()):
        return False
    return all(host.exists(path) for path in marker.get("files", [])) and (
        (MODULE, asked["version"]) in {(item.name, item.version) for item in dkms.sources(host)}
    )


def install(host: HostRoot, url: str, asked: Dict[str, Any], run: RunCommand) -> None:
    """Unpack, hand the module to DKMS, build and install the library; ``asked`` is the marker."""
    work = tempfile.mkdtemp(prefix="epfleet-gdrcopy-")
    try:
        archive, tree = os.path.join(work, "archive"), os.path.join(work, "gdrcopy")
        fetch.fetch(url, asked["checksum"], archive)
        fetch.unpack(archive, tree)
        remove(host, run)
        _add_module(host, tree, asked, run)
        files = _install_library(tree, run)
        if asked.get("cuda"):
            files.append(_install_sanity(tree, asked["cuda"], run))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    marker = os.path.join(host.path(source_directory(asked["version"])), _MARKER)
    write_atomically(marker, json.dumps({**asked, "files": files}, indent=2).encode(), 0o644)


def _add_module(host: HostRoot, tree: str, asked: Dict[str, Any], run: RunCommand) -> None:
    target = host.path(source_directory(asked["version"]))
    shutil.rmtree(target, ignore_errors=True)
    if not os.path.isdir(os.path.join(tree, "src/gdrdrv")):
        raise GdrcopyError("The archive has no src/gdrdrv; it is no source archive of GDRCopy.")
    shutil.copytree(os.path.join(tree, "src/gdrdrv"), target)
    scripts = os.path.join(tree, "scripts")
    if os.path.isdir(scripts):
        shutil.copytree(scripts, os.path.join(target, "scripts"))
    text = _DKMS.format(
        version=asked["version"],
        driver=asked["driver"],
        opensource="y" if asked["opensource"] else "",
    )
    write_atomically(os.path.join(target, "dkms.conf"), text.encode(), 0o644)
    what = ["-m", MODULE, "-v", asked["version"]]
    _must(run, ["dkms", "add", *what])
    for kernel in dkms.buildable(host):
        _must(run, ["dkms", "install", *what, "-k", kernel])


def _install_library(tree: str, run: RunCommand) -> List[str]:
    _must(run, ["make", "-C", tree, "lib"])
    staged = os.path.join(tree, "staged")
    _must(run, ["make", "-C", tree, "lib_install", f"prefix={staged}", "DESTDIR="])
    files = []
    for folder, _folders, names in os.walk(staged):
        for name in names:
            source = os.path.join(folder, name)
            target = os.path.join(PREFIX, os.path.relpath(source, staged))
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if os.path.lexists(target):
                os.unlink(target)
            shutil.copy2(source, target, follow_symlinks=False)
            files.append(target)
    # Not every distribution's loader looks into /usr/local/lib.
    write_atomically(_LOADER, f"{PREFIX}/lib\n".encode(), 0o644)
    _must(run, ["ldconfig"])
    return [*sorted(files), _LOADER]


def _install_sanity(tree: str, cuda: str, run: RunCommand) -> str:
    """Only this one of the archive's programs: the others measure, and one needs nvcc."""
    _must(run, ["make", "-C", os.path.join(tree, "tests"), PROGRAM, f"CUDA={cuda}"])
    target = os.path.join(PREFIX, "bin", PROGRAM)
    shutil.copy2(os.path.join(tree, "tests", PROGRAM), target)
    return target


def remove(host: HostRoot, run: RunCommand) -> bool:
    """Remove what ``install`` left, whole or half; returns whether there was anything."""
    marker = installed(host)
    sources = [source for source in dkms.sources(host) if source.name == MODULE]
    ours = [
        source
        for source in sources
        if host.exists(f"{source_directory(source.version)}/dkms.conf")
        and not host.exists(f"/var/lib/dpkg/info/{MODULE}-dkms.list")
    ]
    for source in ours:
        _must(run, ["dkms", "remove", "-m", MODULE, "-v", source.version, "--all"])
        shutil.rmtree(host.path(source_directory(source.version)), ignore_errors=True)
    for path in (marker or {}).get("files", []):
        if os.path.lexists(host.path(path)):
            os.unlink(host.path(path))
    if marker:
        shutil.rmtree(host.path(source_directory(marker["version"])), ignore_errors=True)
        _must(run, ["ldconfig"])
    return bool(marker or ours)


def _must(run: RunCommand, command: List[str]) -> None:
    code, output, errors = run(command)
    if code != 0:
        error = first_error(errors + "\n" + output)
        detail = error[1] if error else (errors or output).strip()[-300:]
        raise GdrcopyError(f"`{' '.join(command)}` failed with {code}: {detail}")
