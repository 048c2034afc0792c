# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Building the runtime's wheel on a host, in a directory of the build's own."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import shutil
import tarfile
import time
from typing import Any, Iterator

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
_LOCK_TIMEOUT_S = 3600

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


@contextlib.contextmanager
def exclusive(directory: str) -> Iterator[None]:
    """Hold ``directory`` alone, and remove it at the end when nothing else is in it.

    Two controllers may build on one host at once; their builds follow each other.
    """
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        os.makedirs(directory, mode=0o755, exist_ok=True)
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if _lock(handle) and _same_directory(handle, directory):
                yield
                with contextlib.suppress(OSError):
                    os.rmdir(directory)
                return
        finally:
            os.close(handle)
        if time.monotonic() > deadline:
            raise VenvError(f"another build has held {directory} for an hour")
        time.sleep(0.5)


def _lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _same_directory(handle: int, directory: str) -> bool:
    """Whether the locked directory is still the one of that name: its last holder removed it."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(directory))
    except FileNotFoundError:
        return False


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


def build_wheel(
    archive: str,
    work: str,
    python: str,
    pip_args: list[str],
    cuda: dict[str, Any] | None,
) -> str:
    """Build the source in ``archive`` below ``work`` and return the path of the wheel.

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
    run(
        [*wheel, "--wheel-dir", output, source],
        timeout_s=_BUILD_TIMEOUT_S,
        environment=environment,
    )
    wheels = glob.glob(os.path.join(glob.escape(output), "*.whl"))
    if len(wheels) != 1:
        raise VenvError(f"the build left {len(wheels)} wheels in {output} instead of one")
    return wheels[0]


def discard(work: str) -> None:
    """Remove what an earlier or finished build left in ``work``."""
    shutil.rmtree(work, ignore_errors=True)
    if os.path.exists(work):
        raise VenvError(f"{work}, left by an earlier build, cannot be removed")
