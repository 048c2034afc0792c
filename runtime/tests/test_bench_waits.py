"""From counts of waits to microseconds, on made counts with known answers."""

import numpy as np
import pytest
import torch
from ep_runtime.bench import waits
from ep_runtime.bench.correctness import Received
from hypothesis import given
from hypothesis import strategies as st


def test_the_reference_backend_counts_nanoseconds():
    scale = waits.reference_scale(2)
    assert scale.microseconds("combine", torch.tensor([[1500, 0]])).tolist() == [[1.5, 0.0]]


def test_cycles_are_shared_out_among_all_that_waited(monkeypatch):
    monkeypatch.setattr(waits, "_cycles_per_us", lambda device: 2.0)
    # Two local experts, three ranks. Rank 0's token 5 went to both: one row, two entries.
    received = Received(
        x=torch.empty(0),
        scales=None,
        count=torch.tensor([2, 2]),
        src_info=torch.tensor([[5, 7, -1], [5, 0, -1]], dtype=torch.int32),
        layout_range=torch.tensor([[1, 1 << 32 | 1, 2 << 32], [1, 1 << 32 | 1, 2 << 32]]),
    )
    topk_idx = torch.tensor([[0, 1], [2, -1]])
    scale = waits.device_scale(received, topk_idx, 3, torch.device("cpu"))
    assert scale.dispatch.tolist() == [2 + 1, 2 + 2, 2 + 0]
    assert scale.combine.tolist() == [2, 1, 0]
    found = scale.microseconds("combine", torch.tensor([[80, 40, 0]]))
    assert found[0, :2].tolist() == [20.0, 20.0]
    assert np.isnan(found[0, 2])  # no row came from there: nothing is known


def test_what_is_high_only_for_a_while_is_not_high_in_low():
    measured = np.full((100, 2), 10.0)
    measured[:60, 0] = 90.0
    figures = waits.WaitFigures.of(measured, [100.0] * 100)
    assert figures.p50_us.tolist() == [90.0, 10.0]
    assert figures.low_us.tolist() == [10.0, 10.0]
    assert figures.own_us == pytest.approx(10.0)


def test_one_call_is_enough():
    figures = waits.WaitFigures.of(np.array([[3.0, 4.0]]), [10.0])
    assert figures.low_us.tolist() == [3.0, 4.0]
    assert figures.own_us == 6.0


def test_who_waits_least_in_a_barrier_came_last():
    late = waits.lateness([[50.0, 9.0], [0.0, 10.0], [50.0, 10.0]])
    assert late.tolist() == [[0.0, 1.0], [50.0, 0.0], [0.0, 0.0]]


@given(
    ranks=st.integers(1, 6),
    barriers=st.integers(1, 6),
    release=st.floats(0, 1e3),
    seed=st.integers(0, 10**6),
)
def test_lateness_is_the_time_of_arrival_after_the_first(ranks, barriers, release, seed):
    """Whatever the barrier itself takes: all leave it together, so waits tell arrivals apart."""
    arrived = np.random.default_rng(seed).exponential(50, (ranks, barriers))
    left = arrived.max(axis=0) + release
    late = waits.lateness((left - arrived).tolist())
    assert late == pytest.approx(arrived - arrived.min(axis=0), abs=1e-6)


def test_the_skew_of_ranks_that_come_at_random():
    """Of n exponential arrivals the last is on average 1 + 1/2 + ... + 1/(n-1) after the first."""
    arrived = np.random.default_rng(0).exponential(100, (8, 20000))
    skew = waits.lateness((arrived.max(axis=0) - arrived).tolist()).max(axis=0)
    assert skew.mean() == pytest.approx(100 * sum(1 / k for k in range(1, 8)), rel=0.02)


@pytest.mark.parametrize("calls", [50, 200])
def test_a_medians_error_is_that_of_independent_calls(calls):
    """Of n normal values the median has the standard error sigma sqrt(pi / 2 n)."""
    rng = np.random.default_rng(0)
    values = rng.lognormal(3, 0.4, (calls, 400))
    expected = 0.4 * np.sqrt(np.pi / (2 * calls))
    # A typical one of five values' standard deviations is a little below what it estimates.
    assert waits.median_error(values, 0.0) == pytest.approx(0.92 * expected, rel=0.15)


def test_and_larger_when_disturbances_last():
    """Calls of a fifth of the run that are slow together are one value, not forty."""
    rng = np.random.default_rng(1)
    stretches = np.repeat(rng.lognormal(0, 0.4, (5, 400)), 40, axis=0)
    expected = 0.4 / np.sqrt(5)
    assert waits.median_error(stretches, 0.0) == pytest.approx(0.92 * expected, rel=0.15)


def test_a_run_too_short_for_parts_and_sources_without_waits_have_no_error():
    assert waits.median_error(np.ones((1, 4)), 0.0) == 0.0
    assert waits.median_error(np.full((10, 4), np.nan), 0.0) == 0.0
    some = np.ones((10, 2))
    some[:, 1] = np.nan
    assert waits.median_error(some, 0.5) == pytest.approx(0.0, abs=1e-12)
