"""The calls of known programs, on the reference backend; tests/cuda has the same on a GPU."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ranks import RankPool

if TYPE_CHECKING:
    from ranks import Rank

CALLERS = Path(__file__).parent / "callers"
sys.path.insert(0, str(CALLERS))
PROGRAMS = ["vllm_low_latency", "vllm_high_throughput", "sglang_deepep", "megatron_fused"]


def run_program(me: Rank, name: str, **backend: str) -> None:
    import torch

    sys.path.insert(0, str(CALLERS))
    importlib.import_module(name).run(me.group, torch.device("cpu"), backend)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(pool: RankPool, name: str, size: int) -> None:
    pool.run(run_program, size, name=name, backend="reference")


def test_programs_on_a_number_of_ranks_without_a_tuned_configuration(pool: RankPool) -> None:
    for name in ("vllm_low_latency", "vllm_high_throughput", "sglang_deepep"):
        pool.run(run_program, 3, name=name, backend="reference")


def test_examples_of_the_guides() -> None:
    pool = RankPool(8)
    try:
        pool.run(run_program, 8, name="guides")
    finally:
        pool.close()


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_classes_of_vllm(pool: RankPool) -> None:
    pool.run(run_program, 2, name="vllm_classes", backend="reference")


def test_every_program_is_tested() -> None:
    found = {path.stem for path in CALLERS.glob("*.py")}
    assert found == {*PROGRAMS, "guides", "moe", "vllm_classes"}
