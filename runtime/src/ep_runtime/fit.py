"""Whether this build can run on this host: its GPUs, its driver, and NVSHMEM where it is asked for.

CUDA itself is not started: a process that forks later would be left with a broken one. What is
needed is asked of the driver's libraries, as far as there are any.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ep_runtime.environment import BACKEND_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterable

_SUCCESS = 0


@dataclass(frozen=True)
class Driver:
    """What the driver says.

    ``cuda_version``: the newest CUDA it serves, as (major, minor), None without a driver.
    ``capabilities``: (major, minor) of each GPU; empty where there is none, or nothing to ask.
    """

    cuda_version: tuple[int, int] | None = None
    capabilities: list[tuple[int, int]] = field(default_factory=list)


def read_driver() -> Driver:
    """Ask the driver's libraries. Without GPUs, or with all of them hidden, there is nothing."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return Driver()
    capabilities = _capabilities()
    return Driver(_cuda_version(), capabilities) if capabilities else Driver()


def _library(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def _cuda_version() -> tuple[int, int] | None:
    library, number = _library("libcuda.so.1"), ctypes.c_int()
    # The one call that needs no cuInit.
    if library is None or library.cuDriverGetVersion(ctypes.byref(number)) != _SUCCESS:
        return None
    return number.value // 1000, number.value % 1000 // 10


def _capabilities() -> list[tuple[int, int]]:
    library = _library("libnvidia-ml.so.1")
    if library is None or library.nvmlInit_v2() != _SUCCESS:
        return []
    try:
        count = ctypes.c_uint()
        if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != _SUCCESS:
            return []
        found = []
        for index in range(count.value):
            device, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
            if (
                library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == _SUCCESS
                and library.nvmlDeviceGetCudaComputeCapability(
                    device, ctypes.byref(major), ctypes.byref(minor)
                )
                == _SUCCESS
            ):
                found.append((major.value, minor.value))
        return found
    finally:
        library.nvmlShutdown()


def _runs(architecture: str, capability: tuple[int, int]) -> bool:
    """Whether code for ``architecture``, as CMake names it, runs on such a GPU."""
    number, _, kind = architecture.partition("-")
    letters = number.lstrip("0123456789")
    digits = number[: len(number) - len(letters)]
    built = int(digits[:-1]), int(digits[-1])
    if letters == "a":  # for this GPU only
        return built == capability
    same_family = built[0] == capability[0] and built[1] <= capability[1]
    if letters or kind == "real":
        return same_family
    # Portable code is compiled by the driver for any newer GPU; beside it lies code of the family.
    return built <= capability if kind == "virtual" else same_family or built <= capability


def _listed(capabilities: Iterable[tuple[int, int]]) -> str:
    return ", ".join(f"{major}.{minor}" for major, minor in sorted(set(capabilities)))


def refusal(info: dict[str, Any], driver: Driver) -> str | None:
    """Say in one sentence why the build that ``info`` describes can't run here, or None.

    A host without a GPU, and a build without kernels, fit each other and everything.
    """
    if not info["cuda"] or not driver.capabilities:
        return None
    built = tuple(int(part) for part in info["cuda_version"].split("."))
    if driver.cuda_version is not None and driver.cuda_version[0] < built[0]:
        return (
            f"This build of ep_runtime is for CUDA {info['cuda_version']}, but the driver of this "
            "host serves CUDA {}.{} at most: install a newer driver or a wheel for CUDA {}.".format(
                *driver.cuda_version, driver.cuda_version[0]
            )
        )
    architectures = info["cuda_architectures"]
    if not any(_runs(a, capability) for a in architectures for capability in driver.capabilities):
        return (
            f"This build of ep_runtime has code for GPU architectures {', '.join(architectures)}, "
            f"but the GPUs of this host have compute capability {_listed(driver.capabilities)}: "
            "install a wheel built for them."
        )
    return None


def nvshmem_refusal(info: dict[str, Any]) -> str | None:
    """Say in one sentence why the NVSHMEM of this host does not serve the build, or None.

    Ranks of one host need none, so only who asks for it by name is refused here; else a buffer that
    turns out to need it says the same.
    """
    if os.environ.get(BACKEND_VARIABLE) != "nvshmem" or not info["nvshmem_version"]:
        return None
    # Itself a part of what is refused as a whole, so imported only here.
    library = import_module("ep_runtime.backends.nvshmem_library")
    cuda_major = int(info["cuda_version"].split(".")[0])
    major, minor, patch = (int(number) for number in info["nvshmem_version"].split("."))
    problem: str | None = library.problem_before_loading(cuda_major, (major, minor, patch))
    return problem


def require_fit(info: dict[str, Any]) -> None:
    """ImportError where this build can't run here.

    Those who want the reference backend anyway say so with EP_RUNTIME_BACKEND.
    """
    if os.environ.get(BACKEND_VARIABLE) == "reference":
        return
    reason = refusal(info, read_driver()) or nvshmem_refusal(info)
    if reason is not None:
        raise ImportError(reason)
