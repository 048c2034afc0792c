# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Building the runtime's wheel on a host, in a directory of the build's own."""

from __future__ import annotations

import glob
import json
import os
import shutil
import tarfile
from typing import Any

from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_source import (
    SOURCE_EPOCH,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_venv import (
    VenvError,
    clean_environment,
    run,
    venv_python,
)

_BUILD_TIMEOUT_S = 3600

# pip carries a TOML reader for the Pythons that have none (before 3.11).
_ASK_BUILD_REQUIREMENTS = """
import json, sys
try:
    import tomllib
except ImportError:
    from pip._vendor import tomli as tomllib
with open(sys.argv[1], "rb") as stream:
    print(json.dumps(tomllib.load(stream)["build-system"]["requires"]))
"""


def build_environment(venv: str, cuda: dict[str, Any] | None) -> dict[str, str]:
    """The environment of the compiler: fixed time stamps, CUDA and NVSHMEM asked for or refused."""
    environment = clean_environment()
    environment["PATH"] = os.path.join(venv, "bin") + os.pathsep + environment.get("PATH", "")
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
    unpack(archive, source)
    run([python, "-m", "venv", venv])
    builder = venv_python(venv)
    ask = [builder, "-I", "-c", _ASK_BUILD_REQUIREMENTS, os.path.join(source, "pyproject.toml")]
    requirements: list[str] = json.loads(run(ask))
    pip = [builder, "-m", "pip", "--no-input", "--disable-pip-version-check"]
    environment = build_environment(venv, cuda)
    run(
        [*pip, "install", *pip_args, *requirements, "cmake>=3.26", "ninja"],
        timeout_s=_BUILD_TIMEOUT_S,
        environment=environment,
    )
    wheel = [*pip, "wheel", *pip_args, "--no-deps", "--no-build-isolation", "--no-cache-dir"]
    built = []
    for part in (source, os.path.join(source, "shim")):
        target = os.path.join(output, str(len(built)))
        run(
            [*wheel, "--wheel-dir", target, part],
            timeout_s=_BUILD_TIMEOUT_S,
            environment=environment,
        )
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
