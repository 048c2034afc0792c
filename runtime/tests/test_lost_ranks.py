"""Ranks that disagree, stay silent or die: an error that names them, within the timeout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import rank_tasks
from oracle import Shape
from ranks import RankPool

if TYPE_CHECKING:
    from collections.abc import Iterator

SHAPE = Shape(2, 512, 2, 4, 6, (6, 5))


@pytest.fixture
def fragile() -> Iterator[RankPool]:
    """Ranks for one test, since it breaks them."""
    pool = RankPool(3)
    yield pool
    pool.close()


def test_differing_hidden_is_named(pool: RankPool, seed: int) -> None:
    texts = pool.run(rank_tasks.error_of, 2, shape=SHAPE, seed=seed, what="differing hidden")
    assert texts[0] == (
        "EPError: rank 0: dispatch receive has hidden 512 here, but 384 on rank 1: all ranks must "
        "make the same calls."
    )
    assert "hidden 384 here, but 512 on rank 0" in texts[1]


def test_differing_bytes_are_named(pool: RankPool, seed: int) -> None:
    for text in pool.run(rank_tasks.error_of, 2, shape=SHAPE, seed=seed, what="differing bytes"):
        assert text == (
            "ValueError: num_rdma_bytes must be the same on all ranks: rank 0 has 128, rank 1 256."
        )


def test_silent_peer_is_named_in_time(fragile: RankPool, seed: int) -> None:
    texts = fragile.run(rank_tasks.error_of, 2, shape=SHAPE, seed=seed, what="silent peer")
    assert texts[0].startswith("EPTimeoutError: rank 0: dispatch receive waited ")
    assert "for rank 1" in texts[0]


def test_dead_peer_is_named(fragile: RankPool, seed: int) -> None:
    shape = Shape(3, 256, 4, 6, 8, (8, 8, 8))
    fragile.start(rank_tasks.go_on_without, 3, shape=shape, seed=seed, enable_shrink=False)
    for rank in (0, 1):
        text = fragile.answer(rank)
        assert f"rank {rank}: dispatch" in text
        assert "lost the connection to rank 2" in text


def test_dead_peer_is_masked_when_shrinking(fragile: RankPool, seed: int) -> None:
    shape = Shape(3, 256, 4, 6, 8, (8, 8, 8))
    fragile.start(rank_tasks.go_on_without, 3, shape=shape, seed=seed, enable_shrink=True)
    for rank in (0, 1):
        assert fragile.answer(rank) == "[0, 0, 1]"
