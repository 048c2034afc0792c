# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Building the runtime's wheel on a host, in a directory of the build's own."""

from __future__ import annotations

import glob
import os
import shutil
import tarfile
from typing import Any

from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_cuda import (
    PYPI,
    complete_toolkit,
    pins,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_source import (
    SOURCE_EPOCH,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_venv import (
    VenvError,
    clean_environment,
    inspect_python,
    pip,
    run,
    venv_python,
)

_BUILD_TIMEOUT_S = 3600


def build_environment(work: str, cuda: dict[str, Any] | None) -> dict[str, str]:
    """The environment of the compiler: fixed time stamps, CUDA and NVSHMEM asked for or refused.

    ``work`` has the build's virtual environment, ``venv``, and its temporary files, ``tmp``.
    """
    environment = clean_environment()
    environment["PATH"] = (
        os.path.join(work, "venv", "bin") + os.pathsep + environment.get("PATH", "")
    )
    # Nothing of a build is elsewhere: /tmp is often small.
    environment["TMPDIR"] = os.path.join(work, "tmp")
    environment["SOURCE_DATE_EPOCH"] = str(SOURCE_EPOCH)
    environment["EP_RUNTIME_CUDA"] = "ON" if cuda else "OFF"
    nvshmem = cuda.get("nvshmem") if cuda else None
    environment["EP_RUNTIME_NVSHMEM"] = "ON" if nvshmem else "OFF"
    if nvshmem:
        environment["NVSHMEM_DIR"] = nvshmem["prefix"]
    if cuda:
        environment["CUDACXX"] = cuda["compiler"]
        if cuda["architectures"]:
            wanted = ";".join(str(item) for item in cuda["architectures"])
            environment["CMAKE_ARGS"] = f"-DEP_RUNTIME_CUDA_ARCHITECTURES={wanted}"
    return environment


def unpack(archive: str, target: str) -> None:
    """Unpack the source archive, which the controller made, into ``target``."""
    with tarfile.open(archive) as packed:
        for member in packed.getmembers():
            if not member.isfile() or os.path.isabs(member.name) or ".." in member.name.split("/"):
                raise VenvError(f"{archive} holds {member.name}, which is no plain file in it")
        packed.extractall(target)


def build_wheels(
    archive: str,
    work: str,
    python: str,
    pip_args: list[str],
    cuda: dict[str, Any] | None,
) -> list[str]:
    """Build the source in ``archive`` below ``work``; return the runtime's wheel and its deep_ep's.

    ``work`` must not exist. Raises ``VenvError`` with the end of the output of what failed.
    """
    source, venv, output = (os.path.join(work, name) for name in ("source", "venv", "wheel"))
    os.makedirs(source, mode=0o755)
    os.mkdir(os.path.join(work, "tmp"), mode=0o700)
    unpack(archive, source)
    tools = build_environment(work, None)
    run([python, "-m", "venv", venv], environment=tools)
    builder = venv_python(venv)
    # Of one version and one content each, since the bytes of the wheel depend on them.
    locked = ["install", "--require-hashes", "--no-deps", "--only-binary", ":all:"]

    def install(requirements: str) -> None:
        wanted = ["--requirement", os.path.join(source, requirements)]
        pip(builder, locked, pip_args, wanted, _BUILD_TIMEOUT_S, tools)

    install("requirements/build.txt")
    if cuda and cuda["compiler"] == PYPI:
        install(pins(cuda["major"]))
        about = inspect_python(builder)
        if about is None:
            raise VenvError(f"{builder} does not run any more")
        cuda = dict(cuda, compiler=complete_toolkit(about["site_packages"], cuda["major"]))
    environment = build_environment(work, cuda)
    wheel = ["wheel", "--no-deps", "--no-build-isolation", "--no-cache-dir"]
    built = []
    for part in (source, os.path.join(source, "shim")):
        target = os.path.join(output, str(len(built)))
        wanted = ["--wheel-dir", target, part]
        pip(builder, wheel, pip_args, wanted, _BUILD_TIMEOUT_S, environment)
        wheels = glob.glob(os.path.join(glob.escape(target), "*.whl"))
        if len(wheels) != 1:
            raise VenvError(f"the build left {len(wheels)} wheels in {target} instead of one")
        built += wheels
    return built


def discard(work: str) -> None:
    """Remove what an earlier or finished build left in ``work``."""
    shutil.rmtree(work, ignore_errors=True)
    if os.path.exists(work):
        raise VenvError(f"{work}, left by an earlier build, cannot be removed")
