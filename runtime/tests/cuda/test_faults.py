"""A rank that stays silent or dies: the others end in bounded time and name it, or go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from faults.judge import run_round
from faults.plan import Plan
from mps import environment
from pool import RankPool

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("shrink", [False, True], ids=["error", "shrink"])
@pytest.mark.parametrize("phase", ["dispatch", "combine"])
def test_silent(pools: Callable[..., RankPool], seed: int, phase: str, shrink: bool) -> None:
    said = pools(4).run(
        "fault_tasks.one_does_not_come", seed=seed, phase=phase, die=False, shrink=shrink
    )
    for text in said[:-1]:
        assert (text == "right without it") if shrink else ("rank 3" in text), text


@pytest.mark.parametrize("shrink", [False, True], ids=["error", "shrink"])
@pytest.mark.parametrize("phase", ["dispatch", "combine"])
def test_killed(seed: int, phase: str, shrink: bool) -> None:
    # Without MPS: its server may not survive a client's death, and that is not ours to test.
    pool = RankPool(4)
    try:
        with pytest.raises(AssertionError) as caught:
            pool.run(
                "fault_tasks.one_does_not_come", seed=seed, phase=phase, die=True, shrink=shrink
            )
        problems = str(caught.value).split("\nrank ")
        assert len(problems) == 1, caught.value  # the dead rank, and no survivor
        assert problems[0].startswith("rank 3: EOFError"), caught.value
    finally:
        pool.close()


@pytest.mark.parametrize("fault", ["stop", "late"])
def test_a_rank_lost_before_a_clean_takes_no_other_along(fault: str, seed: int) -> None:
    """The second barrier's deadline is its own: the first has used all of its time up."""
    plan = Plan(
        fault,
        "clean",
        victim=seed % 3,
        shrink=True,
        hooks=False,
        seed=seed,
        timeout_s=2.0,
        backend="peer",
    )
    with environment("peer") as env:
        result = run_round(plan, env)
    assert not result.problems
    assert result.healthy_masked == 0
