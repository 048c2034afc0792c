"""Rank processes on one or more GPUs, under MPS so that kernels of several processes overlap."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)
# Rank processes are spawned and import the tests' modules by name.
os.environ["PYTHONPATH"] = os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])

from pool import RankPool  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    if torch.cuda.is_available():
        return
    for item in items:  # of the whole run, other folders' tests included
        if Path(item.fspath).is_relative_to(HERE):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


@pytest.fixture(scope="session")
def mps_env() -> Iterator[dict[str, str]]:
    """Environment of an MPS server of our own; empty where several GPUs make it unneeded."""
    import torch

    if torch.cuda.device_count() > 1 or shutil.which("nvidia-cuda-mps-control") is None:
        yield {}
        return
    folder = tempfile.mkdtemp(prefix="ep-mps-")
    env = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
    for path in env.values():
        Path(path).mkdir()
    control = ["nvidia-cuda-mps-control"]
    subprocess.run([*control, "-d"], env={**os.environ, **env}, check=True)
    yield env
    subprocess.run(control, input=b"quit\n", env={**os.environ, **env}, check=False)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def pools(mps_env: dict[str, str]) -> Iterator[Callable[[int], RankPool]]:
    """``pools(n)``: n rank processes; only one size is up at a time."""
    current: list[RankPool] = []

    def get(size: int) -> RankPool:
        if current and (current[0].size != size or current[0].broken):
            current.pop().close()
        if not current:
            current.append(RankPool(size, mps_env))
        return current[0]

    yield get
    for pool in current:
        pool.close()


@pytest.fixture(scope="session")
def seed() -> int:
    """Fresh on every run, printed so that a failure can be repeated."""
    value = int(os.environ.get("EP_TEST_SEED", secrets.randbelow(2**30)))
    print(f"EP_TEST_SEED={value}")
    return value
