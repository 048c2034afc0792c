"""Dispatch and combine among 1 to 4 real processes, against the oracle."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING

import pytest
import rank_tasks
from oracle import Shape

if TYPE_CHECKING:
    from ranks import RankPool

SHAPES = [
    Shape(1, 128, 1, 1, 1, (1,)),
    Shape(1, 512, 4, 4, 8, (8,)),
    Shape(2, 128, 2, 2, 3, (3, 2)),
    Shape(2, 640, 3, 8, 7, (0, 7)),
    Shape(2, 1024, 8, 8, 16, (16, 16), "one_expert"),
    Shape(3, 384, 6, 9, 5, (5, 0, 3)),
    Shape(3, 256, 2, 6, 4, (4, 4, 4), "none"),
    Shape(4, 512, 4, 8, 12, (12, 1, 0, 7)),
    Shape(4, 2560, 8, 32, 16, (16, 16, 16, 16)),
    Shape(4, 128, 32, 64, 9, (9, 9, 9, 9)),
    Shape(4, 256, 2, 8, 16, (8, 8, 8, 8), "duplicates"),
    Shape(4, 7168, 8, 16, 4, (4, 3, 2, 1)),
]
CASES = list(zip(SHAPES, cycle(rank_tasks.MODES)))
SMALL = Shape(2, 512, 2, 4, 6, (6, 5))


@pytest.mark.parametrize(("shape", "mode"), CASES, ids=[f"{s}-{m}" for s, m in CASES])
def test_round_trips(pool: RankPool, seed: int, shape: Shape, mode: str) -> None:
    pool.run(rank_tasks.check_round_trips, shape.size, shape=shape, seed=seed, mode=mode)


@pytest.mark.parametrize("mode", rank_tasks.MODES)
def test_every_mode_on_one_shape(pool: RankPool, seed: int, mode: str) -> None:
    shape = Shape(3, 512, 4, 6, 8, (8, 3, 8))
    pool.run(rank_tasks.check_round_trips, 3, shape=shape, seed=seed, mode=mode)


@pytest.mark.parametrize(
    "task",
    [
        rank_tasks.check_zero_copy,
        rank_tasks.check_logfmt,
        rank_tasks.check_two_in_flight,
        rank_tasks.check_hook_defers,
        rank_tasks.check_clean,
        rank_tasks.check_get_buffer,
    ],
)
def test_feature(pool: RankPool, seed: int, task: object) -> None:
    pool.run(task, SMALL.size, shape=SMALL, seed=seed)


def test_masked_rank(pool: RankPool, seed: int) -> None:
    shape = Shape(3, 256, 4, 6, 8, (8, 8, 8))
    pool.run(rank_tasks.check_masks, 3, shape=shape, seed=seed)


def test_waits_for_late_ranks(pool: RankPool, seed: int) -> None:
    shape = Shape(4, 256, 2, 8, 4, (4, 4, 4, 4))
    pool.run(rank_tasks.check_waits, 4, shape=shape, seed=seed)


def test_rank_and_group_size(pool: RankPool, seed: int) -> None:
    shape = Shape(4, 256, 2, 8, 4, (4, 4, 4, 4))
    pool.run(rank_tasks.check_rank_and_size, 4, shape=shape, seed=seed)
