"""The NVSHMEM backend beyond the matrix: what it reports, its memory, and that order matters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from cases import Shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from pool import RankPool


@pytest.mark.parametrize(
    ("kind", "way"), [("nvshmem", {"same-gpu", "nvlink"}), ("nvshmem-puts", {"put"})]
)
def test_report(pools: Callable[..., RankPool], kind: str, way: set[str]) -> None:
    for rank, report in enumerate(pools(4, kind).run("nvshmem_tasks.report")):
        assert report["backend"] == "nvshmem"
        assert report["peers"][rank] == "self"
        assert set(report["peers"]) - {"self"} <= way
        assert report["nvshmem_library"].endswith("libnvshmem_host.so.3")
        loaded = [int(number) for number in report["nvshmem_version"].split(".")]
        assert loaded >= [int(number) for number in report["build"]["nvshmem_version"].split(".")]
        assert report["nic_handler"] is None  # nothing here has a NIC


def test_rows_published_before_their_data_are_noticed(
    pools: Callable[..., RankPool], seed: int
) -> None:
    """The checker that passes elsewhere fails where order is broken, so its passing says a lot."""
    arguments = {"shape": Shape(1024, 4, 16, 24), "seed": seed}
    broken = pools(2, "nvshmem-unordered").run("nvshmem_tasks.dispatches_wrongly", **arguments)
    assert any(broken)
    assert not any(pools(2, "nvshmem-puts").run("nvshmem_tasks.dispatches_wrongly", **arguments))


@pytest.mark.parametrize("kind", ["nvshmem", "nvshmem-puts"])
def test_memory_is_used_again(pools: Callable[..., RankPool], kind: str, seed: int) -> None:
    for before, after in pools(4, kind).run("nvshmem_tasks.blocks_after_rounds", seed=seed):
        assert after <= 2 * before


def test_one_world_a_process(pools: Callable[..., RankPool]) -> None:
    for message in pools(2, "nvshmem").run("nvshmem_tasks.other_group_is_refused"):
        assert re.search("one world a process.*over the same ranks", message)
