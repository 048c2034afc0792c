"""The compiled kernels as a file: what they link, and that they import without a GPU."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
from ep_runtime import build_info

needs_kernels = pytest.mark.skipif(
    importlib.util.find_spec("ep_runtime._cuda") is None,
    reason="this build holds no CUDA kernels (no nvcc was found)",
)


def module_file() -> str:
    spec = importlib.util.find_spec("ep_runtime._cuda")
    assert spec is not None and spec.origin is not None
    return spec.origin


@needs_kernels
def test_links_neither_driver_nor_torch_nor_nvshmem() -> None:
    listing = subprocess.run(
        ["readelf", "--dynamic", "--dyn-syms", "--wide", module_file()],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    needed = [line.split("[")[1].rstrip("]") for line in listing.splitlines() if "(NEEDED)" in line]
    assert needed
    allowed = (
        "libstdc++",
        "libm.",
        "libgcc_s",
        "libc.",
        "libdl",
        "librt",
        "libpthread",
        "ld-linux",
    )
    assert [name for name in needed if not name.startswith(allowed)] == []
    undefined = [line.split()[-1] for line in listing.splitlines() if " UND " in line]
    assert any(name.startswith("Py") for name in undefined), "readelf's format has changed"
    foreign = ("cu", "_ZN5torch", "_ZN3c10", "_ZN2at", "nvshmem", "nccl", "ibv_")
    assert [name for name in undefined if name.startswith(foreign)] == []


@needs_kernels
def test_imports_without_torch() -> None:
    # The extension alone: `import ep_runtime` needs torch, its kernels must not.
    program = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('_cuda', {module_file()!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "assert 'torch' not in sys.modules\n"
        "print(module.ARCHITECTURES)\n"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout
    assert printed.split() == build_info()["cuda_architectures"]


@needs_kernels
def test_says_what_it_holds() -> None:
    info = build_info()
    assert info["cuda"] is True
    assert int(info["cuda_version"].split(".")[0]) >= 11
    assert info["cuda_architectures"]


@needs_kernels
def test_without_a_driver_an_engine_is_a_python_error() -> None:
    import torch
    from ep_runtime import _cuda

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(RuntimeError):
        _cuda.PeerEngine(0, 4096, 0, 1, False)
