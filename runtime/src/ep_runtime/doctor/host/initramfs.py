# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Which initramfs images a host has, who builds them, and whether they hold our driver options.

A module inside the image is loaded before the root file system is there, with the options that
the image holds. So an image with ``nvidia.ko`` and without the options undoes them at each boot.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Tuple

from . import modprobe
from .archive import (
    ArchiveError,
    module_names,
    read_image,
)
from .procfs import kernels

if TYPE_CHECKING:
    from .archive import Image
    from .root import HostRoot

NOT_NEEDED, CURRENT, STALE, UNKNOWN = "not_needed", "current", "stale", "unknown"
INITRAMFS_TOOLS, DRACUT = "initramfs-tools", "dracut"
_PROGRAM_DIRECTORIES = ("/usr/sbin", "/usr/bin", "/sbin", "/bin")
# Debian and Ubuntu; Fedora and RHEL; SUSE; boot loader specification, on /boot or the ESP.
_IMAGE_PATHS = (
    "/boot/initrd.img-{0}",
    "/boot/initramfs-{0}.img",
    "/boot/initrd-{0}",
    "/boot/*/{0}/initrd",
    "/boot/efi/*/{0}/initrd",
    "/efi/*/{0}/initrd",
)


class ImageState(NamedTuple):
    """State of one image; ``evidence`` is a sentence that says what was found."""

    state: str
    evidence: str


def tool(host: HostRoot) -> str | None:
    """The generator this host uses.

    Looked up by program, not by distribution: Ubuntu moves from one to the other, and there
    ``update-initramfs`` stays as a wrapper around dracut.
    """
    for program, name in (("mkinitramfs", INITRAMFS_TOOLS), ("dracut", DRACUT)):
        if any(host.exists(f"{directory}/{program}") for directory in _PROGRAM_DIRECTORIES):
            return name
    return None


def images(host: HostRoot) -> list[tuple[str, str]]:
    """``(kernel release, path)`` of every image of an installed kernel."""
    found = []
    for kernel in kernels(host):
        for pattern in _IMAGE_PATHS:
            found += [(kernel, path) for path in host.glob(pattern.format(kernel))]
    return found


def facts(
    host: HostRoot,
    module: str,
    require_options: bool,
    planned: dict[str, str] | None = None,
    release: str | None = None,
) -> list[dict[str, Any]]:
    """One entry per image; see ``state`` for the meaning of its state, ``wanted`` for planned.

    ``options`` is the state that the image has where ``require_options`` asks for them. With
    ``release`` only that kernel's images are read.
    """
    builder = tool(host)
    entries: List[Dict[str, Any]] = []
    asked = wanted(host, module, planned)
    found = [item for item in images(host) if release in (None, item[0])]
    # Most of the time is the decompressors', and they are other processes.
    with ThreadPoolExecutor(max_workers=4) as pool:
        results = pool.map(
            lambda item: _states(host.path(item[1]), asked, module, (require_options, True)), found
        )
    for (kernel, path), (result, required) in zip(found, results):
        entries.append(
            {
                "kernel": kernel,
                "path": path,
                "tool": builder,
                "state": result.state,
                "evidence": result.evidence,
                "options": required.state,
            }
        )
    return entries


def wanted(host: HostRoot, module: str, planned: dict[str, str] | None = None) -> dict[str, str]:
    """The options that the host's files give ``module``, and so an image should too.

    With ``planned``, as if our own file held these already (it is not written in check mode).
    """
    files = modprobe.config_files(host)
    if planned is None:
        return modprobe.module_config(files, module).effective()
    others = [item for item in files if item.path != modprobe.OPTIONS_FILE]
    return {**modprobe.module_config(others, module).effective(), **planned}


def state(path: str, asked: Dict[str, str], module: str, require_options: bool) -> ImageState:
    """Compare the options inside the image at ``path`` with those of the root file system.

    not_needed: the module is not inside, so the root file system's options count at its load.
    current / stale: the module is inside (or ``require_options`` asks regardless), and the
    options agree / do not; stale also, when only our own file's options were taken back since.
    unknown: the image cannot be read.
    """
    return _states(path, asked, module, (require_options,))[0]


def _states(
    path: str, asked: Dict[str, str], module: str, required: Tuple[bool, ...]
) -> List[ImageState]:
    """The state of the image, read once, for each answer to whether its options are required."""
    try:
        image = read_image(path, _is_config)
    except ArchiveError as error:
        return [ImageState(UNKNOWN, str(error))] * len(required)
    return [_judge(image, asked, module, require) for require in required]


def _judge(image: Image, asked: Dict[str, str], module: str, require_options: bool) -> ImageState:
    member = module_names(image.names, module)
    files = modprobe.order_archive(image.kept, image.links)
    config = modprobe.module_config(files, module)
    if member is None and not require_options:
        ours = {i.parameter for i in config.assignments if i.source == modprobe.OPTIONS_FILE}
        left = ", ".join(sorted(ours - set(asked)))
        if left:
            return ImageState(STALE, f"no {module}.ko inside, but our {left} is left over")
        return ImageState(NOT_NEEDED, f"no {module}.ko inside")
    inside = config.effective()
    where = f"{member} inside" if member else f"no {module}.ko inside, options asked for"
    difference = _difference(inside, asked)
    if difference:
        return ImageState(STALE, f"{where}; {difference}")
    return ImageState(CURRENT, f"{where}; options agree with the root file system")


def _is_config(name: str) -> bool:
    # Wherever they are: a file of modprobe.d may be a link to somewhere else.
    return name.endswith((".conf", ".alias"))


def _difference(inside: Dict[str, str], asked: Dict[str, str]) -> Optional[str]:
    parts = []
    for parameter in sorted(set(inside) | set(asked)):
        if parameter not in inside:
            parts.append(f"{parameter} is missing")
        elif parameter not in asked:
            parts.append(f"{parameter}={inside[parameter]} is left over")
        elif not modprobe.same_value(parameter, inside[parameter], asked[parameter]):
            parts.append(f"{parameter} is {inside[parameter]} and not {asked[parameter]}")
    return ", ".join(parts) or None


def build_command(builder: str, kernel: str, output: str) -> list[str]:
    """The command that writes a new image for ``kernel`` to ``output``, and nothing else."""
    if builder == INITRAMFS_TOOLS:
        return ["mkinitramfs", "-o", output, kernel]
    return ["dracut", "--force", "--kver", kernel, output]


def free_bytes(path: str) -> int:
    """Bytes that root may still write to the file system of ``path``'s directory."""
    status = os.statvfs(os.path.dirname(path))
    return status.f_bavail * status.f_frsize
