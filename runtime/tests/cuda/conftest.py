"""Rank processes on one or more GPUs; under MPS where they share one, so that kernels overlap."""

from __future__ import annotations

import importlib.util
import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

HERE = str(Path(__file__).parent)
sys.path[:0] = [HERE, str(Path(HERE).parent)]
# Rank processes are spawned and import the tests' modules by name.
os.environ["PYTHONPATH"] = os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])

from mps import mps_server  # noqa: E402
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
    """Environment of an MPS server of our own; empty where there is none to start."""
    with mps_server() as env:
        yield env


# Several ranks on one GPU of a machine that may have no NIC and no network.
NVSHMEM_ENV = {
    "NVSHMEM_REMOTE_TRANSPORT": "none",
    "NVSHMEM_DISABLE_NCCL": "1",
    "NVSHMEM_IGNORE_CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "1",
    "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": "lo",
}
KINDS = {
    "peer": {"EP_TEST_BACKEND": "peer"},
    "nvshmem": {"EP_TEST_BACKEND": "nvshmem", **NVSHMEM_ENV},
    "nvshmem-puts": {
        "EP_TEST_BACKEND": "nvshmem",
        "EP_RUNTIME_NVSHMEM_ONLY_PUTS": "1",
        **NVSHMEM_ENV,
    },
    "nvshmem-unordered": {
        "EP_TEST_BACKEND": "nvshmem",
        "EP_RUNTIME_NVSHMEM_ONLY_PUTS": "1",
        "EP_RUNTIME_NVSHMEM_BREAK_ORDER": "1",
        **NVSHMEM_ENV,
    },
}


@pytest.fixture(scope="session")
def pools(mps_env: dict[str, str]) -> Iterator[Callable[..., RankPool]]:
    """``pools(n, kind)``: n rank processes for a kind of ``KINDS``; only one pool is up at a time.

    Each has a GPU of its own where there are enough, else they share under MPS. Skips where this
    build does not hold the kind.
    """
    import torch

    current: list[tuple[str, RankPool]] = []

    def get(size: int, kind: str = "peer") -> RankPool:
        if kind != "peer" and importlib.util.find_spec("ep_runtime._nvshmem") is None:
            pytest.skip("this build of ep_runtime holds no kernels over NVSHMEM")
        if current and (
            current[0][0] != kind or current[0][1].size != size or current[0][1].broken
        ):
            current.pop()[1].close()
        if not current:
            shared = mps_env if size > torch.cuda.device_count() else {}
            current.append((kind, RankPool(size, {**shared, **KINDS[kind]})))
        return current[0][1]

    yield get
    for _, pool in current:
        pool.close()


@pytest.fixture(scope="session")
def seed() -> int:
    """Fresh on every run, printed so that a failure can be repeated."""
    value = int(os.environ.get("EP_TEST_SEED", secrets.randbelow(2**30)))
    print(f"EP_TEST_SEED={value}")
    return value
