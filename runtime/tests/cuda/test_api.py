"""The public API on GPUs: modes, lifetimes, statistics, masks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from pool import RankPool

TASKS = [
    ("hook_mode", {}),
    ("async_mode", {}),
    ("graph_mode", {"hooks": False}),
    ("graph_mode", {"hooks": True}),
    ("two_alive", {}),
    ("zero_copy_and_out", {}),
    ("statistics", {}),
    ("zero_filled", {}),
    ("deterministic", {}),
    ("lifetimes", {}),
    ("bad_selections", {}),
]


@pytest.mark.parametrize(("task", "options"), TASKS, ids=str)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_task(
    pools: Callable[..., RankPool], size: int, task: str, options: dict[str, bool], seed: int
) -> None:
    pools(size).run(f"api_tasks.{task}", seed=seed, **options)


@pytest.mark.parametrize("size", [2, 4])
def test_masked_rank(pools: Callable[..., RankPool], size: int, seed: int) -> None:
    pools(size).run("api_tasks.masked_rank", seed=seed)


@pytest.mark.parametrize("task", ["planned", "not_as_planned", "another_stream"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_planned_calls(pools: Callable[..., RankPool], size: int, task: str, seed: int) -> None:
    pools(size).run(f"plan_tasks.{task}", seed=seed)


def test_a_planned_call_meets_a_recorded_problem(pools: Callable[..., RankPool], seed: int) -> None:
    pools(2).run("plan_tasks.recorded_problem", seed=seed)
