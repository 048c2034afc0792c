"""Kernels against the reference backend over shapes, formats, routings and rank counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cases import Shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from pool import RankPool

# The rank count varies slowest: starting processes is what costs time.
SHAPES = [
    Shape(128, 1, 8, 4),
    Shape(128, 1, 8, 1),
    Shape(256, 4, 16, 33, routing="uneven"),
    Shape(640, 6, 24, 64),
    Shape(2048, 32, 64, 40),
    Shape(2560, 8, 128, 64, routing="silent_rank"),
    Shape(3072, 2, 8, 96, routing="one_expert"),
    Shape(4096, 8, 32, 20, routing="none"),
    Shape(5120, 9, 64, 16, routing="duplicates"),
    Shape(7168, 8, 256, 8),
    Shape(7168, 8, 32, 128),
    Shape(7168, 8, 64, 128, num_tokens=1),
    Shape(7168, 4, 8, 64, num_tokens=0),
    Shape(8192, 3, 16, 12),
    Shape(16384, 8, 16, 24),
    Shape(1024, 8, 512, 32),
    Shape(512, 8, 64, 512),
]


KINDS = ["peer", "nvshmem", "nvshmem-puts"]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_shape(
    pools: Callable[..., RankPool], kind: str, size: int, shape: Shape, seed: int
) -> None:
    checked = pools(size, kind).run("matrix_tasks.check_shape", shape=shape, seed=seed)
    assert min(checked) >= 3


@pytest.mark.parametrize("num_sms", [1, 2, 7, 16])
@pytest.mark.parametrize(
    ("kind", "size"), [("peer", 1), ("peer", 4), ("nvshmem", 4), ("nvshmem-puts", 4)]
)
def test_any_number_of_sms(
    pools: Callable[..., RankPool], kind: str, size: int, num_sms: int, seed: int
) -> None:
    shape = Shape(2048, 8, 64, 48)
    pools(size, kind).run(
        "matrix_tasks.check_shape", shape=shape, seed=seed, num_sms=num_sms, rounds=1
    )


def test_more_selections_than_shared_memory(pools: Callable[..., RankPool], seed: int) -> None:
    """Then each block reads topk_idx where it needs it, instead of keeping a copy."""
    pools(1).run("matrix_tasks.check_shape", shape=Shape(128, 8, 16, 8192), seed=seed, rounds=1)


@pytest.mark.parametrize("size", [1, 4])
def test_one_expert(pools: Callable[..., RankPool], size: int, seed: int) -> None:
    shape = Shape(1024, 1, size, 16)
    pools(size).run("matrix_tasks.check_shape", shape=shape, seed=seed)
