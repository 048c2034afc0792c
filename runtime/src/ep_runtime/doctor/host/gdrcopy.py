# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""GDRCopy on a host: the gdrdrv module, its device node and the user library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import libraries
from .procfs import device_major

if TYPE_CHECKING:
    from .root import HostRoot

DEVICE = "/dev/gdrdrv"
_LIBRARIES = (
    "/usr/lib/*-linux-gnu/libgdrapi.so.2",
    "/usr/lib64/libgdrapi.so.2",
    "/usr/lib/libgdrapi.so.2",
    "/usr/local/lib/libgdrapi.so.2",
    "/opt/gdrcopy/lib*/libgdrapi.so.2",
)


def facts(host: HostRoot) -> dict[str, Any]:
    """``device_ok`` holds when the node's major is the one the loaded module was given.

    The module gets a new major at each load and makes no node itself, so an old node can lead to
    another driver altogether.
    """
    major = device_major(host, "gdrdrv")
    node = host.device_major(DEVICE)
    library = next((path for pattern in _LIBRARIES for path in host.glob(pattern)), None)
    return {
        "loaded": host.exists("/sys/module/gdrdrv"),
        "version": host.line("/sys/module/gdrdrv/version"),
        "major": major,
        "device_major": node,
        "device_ok": major is not None and node == major,
        "library": library,
        "library_version": libraries.version(host, library),
    }
