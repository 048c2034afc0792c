# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""The CUDA major version a host should be served with: its compiler's, else its driver's."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from .root import HostRoot

_TOOLKIT = "/usr/local/cuda"
_HEADER_VERSION = re.compile(r"#\s*define\s+CUDA_VERSION\s+(\d+)")
# The first driver branch that serves each CUDA major (CUDA release notes, table of drivers).
_DRIVER_BRANCHES = ((580, 13), (525, 12), (450, 11))


def facts(host: HostRoot, driver_version: str | None) -> dict[str, Any]:
    """``major`` is None where there is neither compiler nor driver, ``driver_major`` without it."""
    toolkit = _toolkit_version(host)
    nvcc = _TOOLKIT + "/bin/nvcc" if host.exists(_TOOLKIT + "/bin/nvcc") else None
    served = None
    if driver_version:
        branch = int(driver_version.split(".", maxsplit=1)[0])
        served = next((cuda for least, cuda in _DRIVER_BRANCHES if branch >= least), None)
    major = int(toolkit.split(".", maxsplit=1)[0]) if nvcc and toolkit else served
    return {
        "driver_version": driver_version,
        "driver_major": served,
        "major": major,
        "nvcc": nvcc,
        "toolkit_version": toolkit,
    }


def _toolkit_version(host: HostRoot) -> Optional[str]:
    match = _HEADER_VERSION.search(host.text(_TOOLKIT + "/include/cuda.h") or "")
    if match:
        number = int(match.group(1))
        return f"{number // 1000}.{number % 1000 // 10}"
    try:
        version = json.loads(host.text(_TOOLKIT + "/version.json") or "{}")["cuda"]["version"]
    except (ValueError, KeyError, TypeError):
        return None
    return version if isinstance(version, str) and re.match(r"^\d+\.\d", version) else None
