"""What the compiler of a wheel is told, and which NVSHMEM it is built against."""

from __future__ import annotations

import importlib

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_build import (
    build_environment,
)

info = importlib.import_module(
    "ansible_collections.epfleet.expert_parallel.plugins.modules.ep_runtime_info"
)
CUDA = {"compiler": "/usr/local/cuda/bin/nvcc", "major": 13, "architectures": ["90"]}
HEADER = """
#define NVSHMEM_VENDOR_MAJOR_VERSION 3
#define NVSHMEM_VENDOR_MINOR_VERSION 8
#define NVSHMEM_VENDOR_PATCH_VERSION 0
#define NVSHMEM_VENDOR_PACKAGE_VERSION 0
"""


def test_a_host_only_build_asks_for_neither():
    environment = build_environment("/work", None)
    assert environment["EP_RUNTIME_CUDA"] == environment["EP_RUNTIME_NVSHMEM"] == "OFF"


def test_kernels_without_nvshmem():
    environment = build_environment("/work", {**CUDA, "nvshmem": None})
    assert environment["EP_RUNTIME_CUDA"] == "ON"
    assert environment["EP_RUNTIME_NVSHMEM"] == "OFF"
    assert environment["CUDACXX"] == CUDA["compiler"]


def test_kernels_over_nvshmem():
    nvshmem = {"prefix": "/opt/nvshmem", "version": "3.4.5"}
    environment = build_environment("/work", {**CUDA, "nvshmem": nvshmem})
    assert environment["EP_RUNTIME_NVSHMEM"] == "ON"
    assert environment["NVSHMEM_DIR"] == "/opt/nvshmem"


def test_the_copy_is_known_by_its_header(tmp_path):
    folder = tmp_path / "include" / "non_abi"
    folder.mkdir(parents=True)
    (folder / "nvshmem_version.h").write_text(HEADER)
    assert info.nvshmem_copy(str(tmp_path)) == {"prefix": str(tmp_path), "version": "3.8.0"}


@pytest.mark.parametrize("header", [None, "", "#define NVSHMEM_VENDOR_MAJOR_VERSION 3\n", "\0\xff"])
def test_what_is_no_copy(tmp_path, header):
    if header is not None:
        folder = tmp_path / "include" / "non_abi"
        folder.mkdir(parents=True)
        (folder / "nvshmem_version.h").write_text(header)
    assert info.nvshmem_copy(str(tmp_path)) is None
    assert info.nvshmem_copy("") is None
