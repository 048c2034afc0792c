"""The high-throughput calls among 1 to 16 real processes, against the plain computation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import high_throughput_tasks as tasks
import pytest
from high_throughput_oracle import Case
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ranks import RankPool

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

CASES = {
    "one rank": Case(1, 64, 2, 4, (9,)),
    "tokens nowhere": Case(2, 8, 1, 2, (0, 0)),
    "more channels than tokens": Case(2, 128, 3, 8, (3, 1), num_sms=24),
    "alignment": Case(3, 128, 4, 9, (17, 0, 30), alignment=128),
    "FP8 and scales": Case(4, 384, 4, 8, (12, 5, 0, 33), form="float32"),
    "packed scales": Case(4, 256, 3, 8, (12, 5, 7, 1), form="int32"),
    "worst case": Case(4, 128, 4, 8, (20, 21, 22, 23), spare=5),
    "exactly the worst case": Case(2, 128, 4, 8, (20, 21), spare=0),
    "many selections": Case(4, 7168, 32, 64, (8, 9, 3, 4)),
    "handle between nodes": Case(4, 128, 4, 8, (20, 0, 22, 23), internode=True),
    "worst case between nodes": Case(3, 128, 4, 9, (9, 8, 7), internode=True, spare=3),
}


@pytest.mark.parametrize("name", CASES)
def test_case(pool: RankPool, seed: int, name: str) -> None:
    case = CASES[name]
    pool.run(tasks.check_case, case.size, case=case, seed=seed)


@st.composite
def cases(draw: DrawFn) -> Case:
    size = draw(st.integers(1, 4))
    return Case(
        size=size,
        hidden=128 * draw(st.integers(1, 4)),
        topk=draw(st.integers(1, 9)),
        experts=size * draw(st.integers(1, 6)),
        tokens=tuple(draw(st.lists(st.integers(0, 40), min_size=size, max_size=size))),
        num_sms=2 * draw(st.integers(1, 12)),
        alignment=draw(st.sampled_from([1, 3, 128])),
        internode=draw(st.booleans()),
        form=draw(st.sampled_from(["bf16", "float32", "int32"])),
        spare=draw(st.sampled_from([-1, 0, 7])),
    )


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=cases(), seed=st.integers(0, 2**30))
def test_any_case(pool: RankPool, case: Case, seed: int) -> None:
    pool.run(tasks.check_case, case.size, case=case, seed=seed)


def test_two_nodes(seed: int) -> None:
    """Sixteen ranks: ``dispatch`` itself gives the handle between nodes."""
    pool = RankPool(16)
    try:
        case = Case(16, 128, 4, 32, tuple(range(16)), internode=True)
        pool.run(tasks.check_case, 16, case=case, seed=seed)
        pool.run(tasks.check_two_nodes, 16)
    finally:
        pool.close()


def test_events(pool: RankPool) -> None:
    pool.run(tasks.check_events, 2)


def test_the_report_says_which_call_runs_where(pool: RankPool) -> None:
    pool.run(tasks.check_report, 2)


ERRORS = {
    "row bytes": "RuntimeError: a row of x must be a multiple of 16 bytes, got 18.",
    "one topk": "RuntimeError: topk_idx and topk_weights must be given both or not at all",
    "no layout": "AssertionError: is_token_in_rank is missing.",
    "counts": "RuntimeError: num_tokens_per_rank must count is_token_in_rank, which has [1, 1], "
    "got [1, 0].",
    "worst": "tokens arrived, more than num_worst_tokens=1.",
    "worst alone": "RuntimeError: num_worst_tokens needs topk_idx and topk_weights.",
    "odd sms": "RuntimeError: num_sms of config must be even and not 0, got 3.",
    "comm stream": "RuntimeError: allocate_on_comm_stream needs previous_event and async_finish",
    "scales": "RuntimeError: scales must have shape [1, scales per token], got [2, 1].",
    "alignment": "RuntimeError: expert_alignment must be positive, got 0.",
    "handle and topk": "AssertionError: topk_idx and topk_weights can't be given with a handle.",
    "combine config": "RuntimeError: num_sms of config is 6, but the dispatch that gave this "
    "handle had 4.",
    "combine rows": "RuntimeError: x must have the 2 rows that the dispatch gave, got 1.",
    "combine dtype": "RuntimeError: x must be torch.bfloat16, got torch.float32.",
    "combine handle": "RuntimeError: handle must be the 6 or 10 tensors that dispatch returned.",
    "destroyed": "RuntimeError: this buffer was destroyed.",
    "layout dtype": "RuntimeError: topk_idx must be torch.int64, got torch.int32.",
    "layout expert": "topk_idx[0, 0] is 2, but experts are numbered 0 to 1, and -1 selects none.",
    "layout experts": "RuntimeError: num_experts must be a multiple of the 2 ranks, got 3.",
    "differing hidden": "EPError: rank",
}


@pytest.mark.parametrize("what", ERRORS)
def test_a_wrong_call_is_refused_in_one_sentence(pool: RankPool, what: str) -> None:
    for text in pool.run(tasks.error_of, 2, what=what):
        assert ERRORS[what] in text
