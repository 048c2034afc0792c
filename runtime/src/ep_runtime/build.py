"""What this build of the package holds."""

from __future__ import annotations

import importlib
from typing import Any

from ep_runtime import _core


def build_info() -> dict[str, Any]:
    """Describe this build, ready for JSON; no GPU is touched.

    Keys: ``version``; ``compiler``; ``cuda`` (whether the kernels are in it);
    ``cuda_version`` (such as "13.0") and ``cuda_architectures`` (such as ["90-real"]), None and
    empty without kernels; ``nvshmem_version``, the least that the kernels over NVSHMEM need, None
    without them.
    """
    info: dict[str, Any] = {
        "version": _core.VERSION,
        "compiler": _core.COMPILER,
        "cuda": _core.WITH_CUDA,
        "cuda_version": None,
        "cuda_architectures": [],
        "nvshmem_version": _core.NVSHMEM_VERSION or None,
    }
    if _core.WITH_CUDA:
        kernels = importlib.import_module("ep_runtime._cuda")
        number: int = kernels.CUDA_VERSION
        info["cuda_version"] = f"{number // 1000}.{number % 1000 // 10}"
        info["cuda_architectures"] = kernels.ARCHITECTURES.split()
    return info
