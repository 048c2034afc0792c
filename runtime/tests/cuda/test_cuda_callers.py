"""The calls of known programs, with the kernels; tests/callers has the programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from pool import RankPool

PROGRAMS = ["vllm_low_latency", "vllm_high_throughput", "sglang_deepep", "megatron_fused"]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(pools: Callable[..., RankPool], name: str, size: int) -> None:
    pools(size).run("caller_tasks.run_program", name=name, backend="peer")


def test_examples_of_the_guides(pools: Callable[..., RankPool]) -> None:
    pools(8).run("caller_tasks.run_program", name="guides")
