# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""NVSHMEM copies on a host, identified by their own header and package data."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from . import libraries

if TYPE_CHECKING:
    from .root import HostRoot

FLOOR = "3.3.9"
# Since this version NVSHMEM's CPU-assisted mode works from host memory, without GDRCopy.
NO_GDRCOPY_NEEDED = "3.4.5"

_HEADERS = ("include/non_abi/nvshmem_version.h", "include/nvshmem_version.h")
_VENDOR = re.compile(r"#\s*define\s+NVSHMEM_VENDOR_(MAJOR|MINOR|PATCH)_VERSION\s+(\d+)")
_DIST_INFO = re.compile(r"/nvidia_nvshmem_cu(\d+)-([0-9][^/]*)\.dist-info$")
_ABI = re.compile(r"#\s*define\s+NVSHMEM_TRANSPORT_PLUGIN_MAJOR_VERSION\s+(\d+)")
_BUILD_VARIABLES = re.compile(r'#\s*define\s+NVSHMEM_BUILD_VARS\s+"((?:[^"\\]|\\.)*)"')
_PLUGIN = re.compile(r"/nvshmem_transport_(\w+)\.so\.(\d+)$")
HOST_LIBRARY = "libnvshmem_host.so.3"
# Debian's and Red Hat's packages lay a copy out by CUDA major: headers here, libraries there.
_PACKAGED = re.compile(r"^/usr/include/nvshmem_(\d+)$")
_SYSTEM_PREFIXES = (
    "/usr/local/nvshmem*",
    "/opt/nvidia/nvshmem*",
    "/opt/nvshmem*",
    "{venv}/lib/python3*/site-packages/nvidia/nvshmem",
    "/usr/include/nvshmem*",
)


def copies(host: HostRoot, prefix: str, venv: str = "/opt/epfleet/venv") -> list[dict[str, Any]]:
    """Copies under ``prefix``/VERSION (as the nvshmem role lays them) and in the usual places."""
    found: List[Dict[str, Any]] = []
    for pattern in (prefix.rstrip("/") + "/*/nvidia/nvshmem", *_SYSTEM_PREFIXES):
        for path in host.glob(pattern.replace("{venv}", venv.rstrip("/"))):
            # "current" is a link to one of its neighbours.
            if path == prefix.rstrip("/") + "/current/nvidia/nvshmem":
                continue
            copy = read_copy(host, path)
            if copy is not None:
                found.append(copy)
    return found


def current(host: HostRoot, prefix: str) -> dict[str, Any]:
    """What the nvshmem role keeps beside the copies under ``prefix``.

    ``version`` is where the link ``current`` points, ``environment`` the text of ``nvshmem.env``:
    None where it is missing, or is not root's alone to write.
    """
    link, file = f"{prefix.rstrip('/')}/current", f"{prefix.rstrip('/')}/nvshmem.env"
    version = None
    if os.path.islink(host.path(link)):
        version = os.readlink(host.path(link))
    status = host.stat(file)
    ours = status is not None and (status.st_uid, status.st_mode & 0o7777) == (0, 0o644)
    return {
        "prefix": prefix,
        "version": version,
        "environment": host.text(file) if ours else None,
    }


def read_copy(host: HostRoot, path: str) -> dict[str, Any] | None:
    """Version, CUDA major, libraries and plugins of the copy at ``path``; None when there is none.

    The header's macros come first: package data survives a library that was overwritten.
    ``plugin_abi`` is the so-version that the host library loads, ``plugins`` maps each transport
    to the so-versions that are there, ``ibgda`` says whether it was built in (null: not said).
    """
    version: Optional[str] = None
    text = ""
    for header in (*_HEADERS, "non_abi/nvshmem_version.h"):
        text = host.text(f"{path}/{header}") or ""
        version = header_version(text)
        if version is not None:
            break
    major: Optional[int] = None
    for info in host.glob(path.rsplit("/nvidia/", 1)[0] + "/nvidia_nvshmem_cu*.dist-info"):
        match = _DIST_INFO.search(info)
        if match and "/nvidia/" in path:
            major = int(match.group(1))
            version = version or match.group(2)
    if version is None:
        return None
    packaged = _PACKAGED.match(path)
    if packaged:
        major = int(packaged.group(1))
    plugins: Dict[str, List[int]] = {}
    library = None
    for directory in _library_directories(path, packaged.group(1) if packaged else None):
        library = library or libraries.find(host, HOST_LIBRARY, host.glob(directory))
        for plugin in host.glob(directory + "/nvshmem_transport_*.so.*"):
            match = _PLUGIN.search(plugin)
            if match:
                plugins.setdefault(match.group(1), []).append(int(match.group(2)))
    abi = _ABI.search(text)
    build = _BUILD_VARIABLES.search(text)
    return {
        "path": path,
        "version": version,
        "cuda_major": major,
        "library": library,
        "plugin_abi": int(abi.group(1)) if abi else None,
        "plugins": plugins,
        "ibgda": "NVSHMEM_IBGDA_SUPPORT=ON" in build.group(1) if build else None,
    }


def header_version(text: str) -> Optional[str]:
    """The version in the text of NVSHMEM's version header; None where one of its numbers is not."""
    numbers = dict(_VENDOR.findall(text))
    if len(numbers) < 3:
        return None
    return ".".join(numbers[part] for part in ("MAJOR", "MINOR", "PATCH"))


def _library_directories(path: str, packaged: Optional[str]) -> List[str]:
    if packaged:
        return [f"/usr/lib/*-linux-gnu/nvshmem/{packaged}", f"/usr/lib64/nvshmem/{packaged}"]
    return [path + "/lib"]


def loaded(host: HostRoot, site: str | None) -> dict[str, Any]:
    """Which host library a process of the runtime's environment would load.

    ``candidates`` holds every one that the loader could come upon, the one it takes first. What is
    preloaded comes first; then torch's own copy in ``site``, to which torch has a run path that
    LD_LIBRARY_PATH cannot override (DT_RPATH); then the loader's other places. Modules that are
    loaded later get the copy that is mapped already: all have the same name.
    """
    found = [path for path in libraries.preloaded(host) if "/libnvshmem_host.so" in path]
    places = [site + "/nvidia/nvshmem/lib"] if site else []
    places += libraries.login_paths(host, "LD_LIBRARY_PATH") + libraries.directories(host)
    found += [f"{place}/{HOST_LIBRARY}" for place in places]
    found = [*dict.fromkeys(host.target(path) for path in found if host.exists(path))]
    return {"path": found[0] if found else None, "candidates": found}


def version_key(version: str) -> tuple[int, ...]:
    """Sort key of a dotted version; raises ValueError when it is none."""
    if not re.match(r"^\d+(\.\d+){1,3}$", version):
        raise ValueError(f"{version!r} is not a version such as 3.4.5")
    return tuple(int(part) for part in version.split("."))
