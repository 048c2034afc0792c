# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""NVSHMEM copies on a host, identified by their own header and package data."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Dict, List, Optional

if TYPE_CHECKING:
    from .root import HostRoot

FLOOR = "3.3.9"
# Since this version NVSHMEM's CPU-assisted mode works from host memory, without GDRCopy.
NO_GDRCOPY_NEEDED = "3.4.5"

_HEADERS = ("include/non_abi/nvshmem_version.h", "include/nvshmem_version.h")
_VENDOR = re.compile(r"#\s*define\s+NVSHMEM_VENDOR_(MAJOR|MINOR|PATCH)_VERSION\s+(\d+)")
_DIST_INFO = re.compile(r"/nvidia_nvshmem_cu(\d+)-([0-9][^/]*)\.dist-info$")
_SYSTEM_PREFIXES = (
    "/usr/local/nvshmem*",
    "/opt/nvidia/nvshmem*",
    "/opt/nvshmem*",
    "/opt/epfleet/venv/lib/python3*/site-packages/nvidia/nvshmem",
    "/usr/include/nvshmem*",
)


def copies(host: HostRoot, prefix: str) -> list[dict[str, Any]]:
    """Copies under ``prefix``/VERSION (as the nvshmem role lays them) and in the usual places."""
    found: List[Dict[str, Any]] = []
    for pattern in (prefix.rstrip("/") + "/*/nvidia/nvshmem", *_SYSTEM_PREFIXES):
        for path in host.glob(pattern):
            # "current" is a link to one of its neighbours.
            if path == prefix.rstrip("/") + "/current/nvidia/nvshmem":
                continue
            copy = read_copy(host, path)
            if copy is not None:
                found.append(copy)
    return found


def read_copy(host: HostRoot, path: str) -> dict[str, Any] | None:
    """Version and CUDA major of the copy at ``path``; None when there is none.

    The header's macros come first: package data survives a library that was overwritten.
    """
    version: Optional[str] = None
    for header in (*_HEADERS, "non_abi/nvshmem_version.h"):
        numbers = dict(_VENDOR.findall(host.text(f"{path}/{header}") or ""))
        if len(numbers) == 3:
            version = ".".join(numbers[part] for part in ("MAJOR", "MINOR", "PATCH"))
            break
    major: Optional[int] = None
    for info in host.glob(path.rsplit("/nvidia/", 1)[0] + "/nvidia_nvshmem_cu*.dist-info"):
        match = _DIST_INFO.search(info)
        if match and "/nvidia/" in path:
            major = int(match.group(1))
            version = version or match.group(2)
    if version is None:
        return None
    return {"path": path, "version": version, "cuda_major": major}


def version_key(version: str) -> tuple[int, ...]:
    """Sort key of a dotted version; raises ValueError when it is none."""
    if not re.match(r"^\d+(\.\d+){1,3}$", version):
        raise ValueError(f"{version!r} is not a version such as 3.4.5")
    return tuple(int(part) for part in version.split("."))
