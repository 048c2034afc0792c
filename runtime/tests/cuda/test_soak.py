"""Random shapes, routings and modes without end: EP_TEST_SOAK_S seconds of them (default 20)."""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING

from cases import Shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from pool import RankPool

RANKS = 4


def random_shape(draw: random.Random) -> Shape:
    experts = RANKS * draw.randint(1, 64)
    tokens = draw.choice([1, 2, 7, 16, 33, 64, 128])
    return Shape(
        hidden=128 * draw.randint(1, 56),
        num_topk=draw.randint(1, min(16, experts)),
        num_experts=experts,
        max_tokens=tokens,
        num_tokens=draw.randint(0, tokens),
        routing=draw.choice(["random", "uneven", "silent_rank", "one_expert", "none"]),
    )


def test_soak(pools: Callable[..., RankPool], seed: int) -> None:
    draw = random.Random(seed)
    pool = pools(RANKS)
    end = time.monotonic() + float(os.environ.get("EP_TEST_SOAK_S", "20"))
    shapes = checked = 0
    while time.monotonic() < end:
        arguments = {
            "shape": random_shape(draw),
            "seed": draw.randrange(2**30),
            "num_sms": draw.choice([0, 1, 5, 16, 33]),
        }
        checked += sum(pool.run("matrix_tasks.check_shape", **arguments))
        shapes += 1
    print(f"soak: {shapes} shapes, {checked} dispatches, {2 * checked} combines, no difference")
    assert shapes > 0
