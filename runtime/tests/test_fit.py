"""A build that does not fit the host's GPUs says so when it is imported, in one sentence.

The driver's libraries are small ones made here, so that the real questions are asked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from ep_runtime.fit import Driver, refusal

if TYPE_CHECKING:
    from pathlib import Path

BUILD = {
    "cuda": True,
    "cuda_version": "13.0",
    "cuda_architectures": ["80-real", "90-real", "100-real", "120"],
    "nvshmem_version": "3.5.21",
}

LIBRARIES = {
    "libcuda.so.1": "int cuDriverGetVersion(int* v) { *v = %(cuda)d; return 0; }",
    "libnvidia-ml.so.1": """
static const int capabilities[][2] = {%(capabilities)s {0, 0}};
int nvmlInit_v2(void) { return %(init)d; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned* n) { *n = %(count)d; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void** d) { *d = (void*)capabilities[i]; return 0; }
int nvmlDeviceGetCudaComputeCapability(void* d, int* major, int* minor) {
  *major = ((int*)d)[0]; *minor = ((int*)d)[1]; return 0;
}""",
}


@pytest.mark.parametrize(
    ("capability", "fits"),
    [
        ((7, 5), False),
        ((8, 0), True),
        ((8, 9), True),
        ((9, 0), True),
        ((10, 3), True),
        ((11, 0), False),
        ((12, 1), True),
        ((13, 0), True),  # portable code of 120
    ],
)
def test_architectures(capability: tuple[int, int], fits: bool) -> None:
    reason = refusal(BUILD, Driver((13, 0), [capability]))
    assert (reason is None) == fits
    if reason is not None:
        assert "80-real, 90-real, 100-real, 120" in reason
        assert "{}.{}".format(*capability) in reason


@pytest.mark.parametrize(
    ("architecture", "capability", "fits"),
    [
        ("90a-real", (9, 0), True),
        ("90a", (10, 0), False),
        ("100f", (10, 3), True),
        ("100f", (12, 0), False),
        ("90-virtual", (8, 9), False),
        ("90-virtual", (12, 0), True),
        ("80", (9, 0), True),
    ],
)
def test_kinds_of_code(architecture: str, capability: tuple[int, int], fits: bool) -> None:
    build = {**BUILD, "cuda_architectures": [architecture]}
    assert (refusal(build, Driver((13, 0), [capability])) is None) == fits


@pytest.mark.parametrize(("version", "fits"), [((12, 9), False), ((13, 0), True), ((14, 1), True)])
def test_driver(version: tuple[int, int], fits: bool) -> None:
    """Within a major version of CUDA any driver will do."""
    reason = refusal({**BUILD, "cuda_version": "13.2"}, Driver(version, [(9, 0)]))
    assert (reason is None) == fits
    if reason is not None:
        assert "CUDA 13.2" in reason
        assert "CUDA 12.9 at most" in reason


def test_one_gpu_that_fits_is_enough() -> None:
    assert refusal(BUILD, Driver((13, 0), [(7, 5), (9, 0)])) is None


@pytest.mark.parametrize(
    ("build", "driver"),
    [
        ({**BUILD, "cuda": False}, Driver((11, 0), [(7, 5)])),
        (BUILD, Driver((11, 0), [])),
        (BUILD, Driver(None, [(9, 0)])),
    ],
    ids=["no kernels", "no GPU", "no driver library"],
)
def test_nothing_to_refuse(build: dict[str, object], driver: Driver) -> None:
    assert refusal(build, driver) is None


@pytest.fixture
def ask(tmp_path: Path):
    """Import the backends as this build, described by BUILD, would be on a host of its own."""

    def imported(
        cuda: int = 13000, capabilities: tuple[tuple[int, int], ...] = (), init: int = 0, **env: str
    ) -> str:
        values = {
            "cuda": cuda,
            "init": init,
            "count": len(capabilities),
            "capabilities": "".join(f"{{{a}, {b}}}," for a, b in capabilities),
        }
        for name, source in LIBRARIES.items():
            file = tmp_path / f"{name}.c"
            file.write_text(source % values)
            subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / name, file], check=True)
        code = (
            "import json, ep_runtime.build\n"
            f"ep_runtime.build.build_info = lambda: json.loads({json.dumps(BUILD)!r})\n"
            "try:\n from ep_runtime import Buffer\nexcept ImportError as error:\n print(error)"
        )
        environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), **env}
        for name in ("EP_RUNTIME_BACKEND", "NVSHMEM_DIR", "NVSHMEM_HOME"):
            environment.pop(name, None)
        environment.update(env)
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return imported


def test_import_on_a_host_that_fits(ask) -> None:
    assert ask(13000, ((9, 0), (9, 0))) == ""


def test_import_with_an_old_driver(ask) -> None:
    assert ask(12040, ((9, 0),)) == (
        "This build of ep_runtime is for CUDA 13.0, but the driver of this host serves CUDA 12.4 "
        "at most: install a newer driver or a wheel for CUDA 12."
    )


def test_import_on_other_gpus(ask) -> None:
    assert ask(13000, ((7, 5), (7, 0))) == (
        "This build of ep_runtime has code for GPU architectures 80-real, 90-real, 100-real, 120, "
        "but the GPUs of this host have compute capability 7.0, 7.5: install a wheel built for "
        "them."
    )


def nvshmem(prefix: Path, version: str) -> str:
    """A copy of NVSHMEM, as far as it is looked at before it is loaded."""
    numbers = zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=True)
    header = prefix / "include/non_abi/nvshmem_version.h"
    for file, text in (
        (header, "".join(f"#define NVSHMEM_VENDOR_{n}_VERSION {v}\n" for n, v in numbers)),
        (prefix / "lib/libnvshmem_host.so.3", ""),
    ):
        file.parent.mkdir(parents=True)
        file.write_text(text)
    return str(prefix)


def test_import_beside_another_nvshmem(ask, tmp_path: Path) -> None:
    prefix = nvshmem(tmp_path / "nvshmem", "3.4.5")
    assert ask(13000, ((9, 0),), EP_RUNTIME_BACKEND="nvshmem", NVSHMEM_DIR=prefix) == (
        f"{prefix}/lib/libnvshmem_host.so.3 is NVSHMEM 3.4.5, but this build of ep_runtime needs "
        "3.5.21 or a newer 3.x: start the program with LD_PRELOAD set to such a "
        "libnvshmem_host.so.3 (torch loads its own copy otherwise), or build ep_runtime against "
        "3.4.5."
    )
    # Nobody has asked for it: ranks of one host need none.
    assert ask(13000, ((9, 0),), NVSHMEM_DIR=prefix) == ""


def test_import_beside_an_nvshmem_that_serves(ask, tmp_path: Path) -> None:
    prefix = nvshmem(tmp_path / "nvshmem", "3.8.0")
    assert ask(13000, ((9, 0),), EP_RUNTIME_BACKEND="nvshmem", NVSHMEM_DIR=prefix) == ""


@pytest.mark.parametrize(
    "host",
    [
        {"capabilities": ()},
        {"capabilities": ((7, 5),), "init": 9},
        {"capabilities": ((7, 5),), "CUDA_VISIBLE_DEVICES": ""},
        {"capabilities": ((7, 5),), "EP_RUNTIME_BACKEND": "reference"},
    ],
    ids=["no GPU", "no driver loaded", "GPUs hidden", "reference wanted"],
)
def test_import_where_there_is_nothing_to_refuse(ask, host) -> None:
    assert ask(**host) == ""
