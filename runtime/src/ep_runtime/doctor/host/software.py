# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""The Python environment that the runtime is installed in, read without starting its Python."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Dict, Optional

if TYPE_CHECKING:
    from .root import HostRoot

_DIST_INFO = re.compile(r"/([A-Za-z0-9_.]+)-([0-9][^/-]*)\.dist-info$")
_TORCH_CUDA = re.compile(r"^cuda(?:: [^=\n]+)? = '(\d+\.\d+)'", re.MULTILINE)


def facts(host: HostRoot, venv: str) -> Dict[str, Any]:
    """``python``, versions of ``torch`` (and the CUDA it was built with) and ``ep_runtime``.

    ``nvshmem_pin`` is the version that torch's own package data asks for, null where it asks none.
    """
    sites = host.glob(venv.rstrip("/") + "/lib/python3*/site-packages")
    site = sites[-1] if sites else None
    versions: Dict[str, str] = {}
    for path in host.glob(site + "/*.dist-info") if site else ():
        match = _DIST_INFO.search(path)
        if match:
            versions[match.group(1).lower()] = match.group(2)
    torch = versions.get("torch")
    cuda = _TORCH_CUDA.search((host.text(f"{site}/torch/version.py") or "") if site else "")
    return {
        "venv": venv if site else None,
        "site": site,
        "python": site.split("/")[-2][len("python") :] if site else None,
        "torch": torch,
        "torch_cuda": cuda.group(1) if cuda else None,
        "ep_runtime": versions.get("ep_runtime"),
        "nvshmem_pin": _pin(host, f"{site}/torch-{torch}.dist-info/METADATA") if torch else None,
    }


def _pin(host: HostRoot, path: str) -> Optional[Dict[str, Any]]:
    match = re.search(
        r"^Requires-Dist: nvidia-nvshmem-cu(\d+)\s*\(?==\s*([\d.]+)", host.text(path) or "", re.M
    )
    return {"cuda_major": int(match.group(1)), "version": match.group(2)} if match else None
