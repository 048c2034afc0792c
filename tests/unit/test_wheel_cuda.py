"""Which CUDA compiler builds a host's kernels; and PyPI's, for real, on one of the kernels."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import wheel_cuda
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_build import (
    build_environment,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_source import (
    read_source,
)
from conftest import CHECKOUT

RUNTIME = CHECKOUT / "runtime"
HOST = {
    "compiler": "/usr/local/cuda/bin/nvcc",
    "version": "13.1.80",
    "driver_major": 13,
    "architectures": ["90"],
    "nvshmem": None,
}
BARE = {**HOST, "compiler": None, "version": None}
OLD_DRIVER = {**BARE, "driver_major": 12}
NO_GPU = {**BARE, "driver_major": None, "architectures": []}


def choose(cuda, compiler, host, machine="x86_64"):
    return wheel_cuda.choose_compiler(cuda, compiler, host, machine, {13: "13.0.88"})


@pytest.mark.parametrize(
    ("cuda", "compiler", "host", "chosen"),
    [
        ("auto", "auto", HOST, ("/usr/local/cuda/bin/nvcc", "13.1.80", 13)),
        ("auto", "host", HOST, ("/usr/local/cuda/bin/nvcc", "13.1.80", 13)),
        ("auto", "pypi", HOST, ("pypi", "13.0.88", 13)),
        ("auto", "auto", BARE, ("pypi", "13.0.88", 13)),
        ("on", "auto", {**HOST, "version": "12.8.93"}, ("/usr/local/cuda/bin/nvcc", "12.8.93", 12)),
        ("on", "pypi", NO_GPU, ("pypi", "13.0.88", 13)),
        ("auto", "host", BARE, None),
        ("auto", "auto", OLD_DRIVER, None),
        ("auto", "auto", NO_GPU, None),
        ("auto", "pypi", NO_GPU, None),
        ("auto", "auto", {**NO_GPU, "compiler": "/nvcc", "version": "13.1.80"}, None),
        ("off", "pypi", HOST, None),
    ],
)
def test_the_compiler(cuda, compiler, host, chosen):
    found = choose(cuda, compiler, host)
    assert (found and (found["compiler"], found["version"], found["major"])) == chosen
    if found:
        assert found["architectures"] == host["architectures"]


@pytest.mark.parametrize(
    ("cuda", "compiler", "host", "machine", "words"),
    [
        ("on", "host", BARE, "x86_64", "no nvcc that runs in /usr/local/cuda/bin"),
        ("on", "auto", OLD_DRIVER, "x86_64", "driver serves CUDA 12, and PyPI has .* CUDA 13 only"),
        ("auto", "pypi", OLD_DRIVER, "x86_64", "install the CUDA 12 toolkit"),
        ("on", "auto", BARE, "ppc64le", "no CUDA compiler for ppc64le"),
    ],
)
def test_what_can_not_be_is_one_sentence(cuda, compiler, host, machine, words):
    with pytest.raises(ValueError, match=words) as caught:
        choose(cuda, compiler, host, machine)
    assert str(caught.value).endswith(".")


def test_the_pins_are_in_the_source_with_all_that_a_compiler_needs():
    assert wheel_cuda.pinned_compilers(read_source(str(RUNTIME))) == {13: "13.0.88"}
    pins = (RUNTIME / wheel_cuda.pins(13)).read_text()
    assert set(re.findall(r"^([\w-]+)==", pins, re.MULTILINE)) == {
        "nvidia-cuda-cccl",
        "nvidia-cuda-crt",
        "nvidia-cuda-nvcc",
        "nvidia-cuda-runtime",
        "nvidia-nvvm",
    }


def test_wheels_that_are_not_there_are_no_toolkit(tmp_path):
    with pytest.raises(OSError, match="nvcc"):
        wheel_cuda.complete_toolkit(str(tmp_path), 13)


def test_pypis_compiler_compiles_a_kernel_without_any_other(tmp_path):
    """Downloads 105 MB, or takes them from pip's cache."""
    site = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(site)]
    pins = str(RUNTIME / wheel_cuda.pins(13))
    options = ["--require-hashes", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*command, *options, "--requirement", pins], check=True)
    nvcc = wheel_cuda.complete_toolkit(str(site), 13)
    assert wheel_cuda.complete_toolkit(str(site), 13) == nvcc

    cuda = choose("on", "pypi", {**HOST, "architectures": ["90"]})
    (tmp_path / "tmp").mkdir()
    environment = build_environment(str(tmp_path), {**cuda, "compiler": nvcc})
    folders = [str(Path(sys.executable).parent), *environment["PATH"].split(os.pathsep)]
    environment["PATH"] = os.pathsep.join(
        folder for folder in folders if not (Path(folder) / "nvcc").exists()
    )
    hooks = [sys.executable, "-m", "pybind11", "--cmakedir"]
    pybind11 = subprocess.run(hooks, check=True, capture_output=True, text=True).stdout.strip()
    build = str(tmp_path / "build")
    configure = ["cmake", "-G", "Ninja", "-S", str(RUNTIME), "-B", build]
    configure += [
        "-DSKBUILD_PROJECT_VERSION=0",
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-Dpybind11_DIR={pybind11}",
        environment["CMAKE_ARGS"],
    ]
    kernel = "csrc/cuda/CMakeFiles/_cuda.dir/clean.cu.o"
    told = []
    for step in (configure, ["cmake", "--build", build, "--target", kernel]):
        done = subprocess.run(step, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        told.append(done.stdout)
    assert f"(asked ON, nvcc {nvcc})" in told[0]
    code = (tmp_path / "build" / kernel).read_bytes()
    assert b"sm_90" in code
