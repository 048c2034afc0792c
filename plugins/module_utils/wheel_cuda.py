# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""The CUDA compiler of a build: the host's, or NVIDIA's wheels on PyPI in the build's environment.

PyPI has a whole compiler from CUDA 13 on: the wheels for CUDA 12 hold ptxas and no nvcc.
"""

from __future__ import annotations

import os
import re
from typing import Any

PYPI = "pypi"
# Where the source keeps the pins of PyPI's compiler for a CUDA major.
_PINS = re.compile(r"^requirements/cuda(\d+)\.txt$")
_NVCC_PIN = re.compile(r"^nvidia-cuda-nvcc==([\d.]+)", re.MULTILINE)
# The machines that NVIDIA makes those wheels for.
_MACHINES = ("x86_64", "aarch64")


def pins(major: int) -> str:
    """Path in the source of what PyPI's compiler for CUDA ``major`` is installed from."""
    return f"requirements/cuda{major}.txt"


def pinned_compilers(source: dict[str, bytes]) -> dict[int, str]:
    """CUDA major and version of nvcc of each compiler that the source names wheels of.

    ``source`` is the content of the runtime's source by path.
    """
    found = {}
    for path, content in source.items():
        named = _PINS.match(path)
        version = _NVCC_PIN.search(content.decode("utf-8")) if named else None
        if named and version:
            found[int(named.group(1))] = version.group(1)
    return found


def choose_compiler(
    cuda: str, compiler: str, host: dict[str, Any], machine: str, pinned: dict[int, str]
) -> dict[str, Any] | None:
    """Return ``compiler``, ``version``, ``major``, ``architectures`` and ``nvshmem`` of a build.

    None is a build without CUDA kernels. ``cuda`` is auto, on or off; ``compiler`` auto, host or
    pypi; ``host`` the ``cuda`` part of ``ep_runtime_info``; ``pinned`` from ``pinned_compilers``.
    The returned ``compiler`` is the path of nvcc or ``PYPI``. Raises ``ValueError``, with one
    sentence, when what was asked for can't be.
    """
    if cuda == "off" or (cuda == "auto" and not host["architectures"]):
        return None
    build = {name: host[name] for name in ("architectures", "nvshmem")}
    if compiler != PYPI and host["compiler"]:
        major = int(host["version"].split(".")[0])
        return dict(build, compiler=host["compiler"], version=host["version"], major=major)
    major = host["driver_major"] or max(pinned)
    if compiler == "host":
        problem = (
            "the host has no nvcc that runs in /usr/local/cuda/bin: install the CUDA toolkit there,"
            " or set ep_runtime_cuda_compiler to auto or pypi"
        )
    elif major not in pinned:
        problem = (
            f"the host's driver serves CUDA {major}, and PyPI has an nvcc for CUDA"
            f" {' and '.join(str(item) for item in sorted(pinned))} only: install the CUDA"
            f" {major} toolkit in /usr/local/cuda, or a newer driver"
        )
    elif machine not in _MACHINES:
        problem = (
            f"PyPI has no CUDA compiler for {machine}: install the CUDA toolkit in /usr/local/cuda"
        )
    else:
        return dict(build, compiler=PYPI, version=pinned[major], major=major)
    if cuda == "auto" and compiler != PYPI:
        return None
    raise ValueError(f"CUDA kernels can't be built: {problem}.")


def complete_toolkit(site_packages: str, major: int) -> str:
    """Make what the wheels installed below ``site_packages`` a toolkit; return its nvcc.

    nvcc looks for libraries in lib64, and CMake for libcudart.so: the wheels have neither name.
    Raises ``OSError`` when the wheels are not there.
    """
    prefix = os.path.join(site_packages, "nvidia", f"cu{major}")
    nvcc = os.path.join(prefix, "bin", "nvcc")
    os.stat(nvcc)
    for target, name in (("lib", "lib64"), (f"libcudart.so.{major}", "lib/libcudart.so")):
        path = os.path.join(prefix, name)
        if not os.path.lexists(path):
            os.symlink(target, path)
    return nvcc
