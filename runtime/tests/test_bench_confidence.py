"""The interval of a percentile, on distributions whose percentiles are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from ep_runtime.bench import confidence
from hypothesis import given
from hypothesis import strategies as st

EXPONENTIAL_P99 = 100 * math.log(100)  # of mean 100


def coverage(draw, p99, runs=400):
    """Share of runs whose interval holds ``p99``; an end that is missing holds everything."""
    held = 0
    for seed in range(runs):
        low, high = confidence.interval(draw(np.random.default_rng(seed)))
        held += low <= p99 and (high is None or p99 <= high)
    return held / runs


def binomial_cdf(count, p, most):
    return sum(math.comb(count, k) * p**k * (1 - p) ** (count - k) for k in range(most + 1))


@given(count=st.integers(1, 900), quantile=st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_the_places_enclose_with_the_asked_probability_and_no_narrower_ones_do(count, quantile):
    low, high = confidence.enclosing(count, quantile)
    tail = 0.025
    # x[low] > Q means that at most low - 1 values are below Q.
    assert 1 <= low <= count
    assert low == 1 or binomial_cdf(count, quantile, low - 1) <= tail * (1 + 1e-9)
    assert binomial_cdf(count, quantile, low) > tail * (1 - 1e-9)
    if high is None:
        assert quantile**count > tail
    else:
        assert low < high <= count
        assert 1 - binomial_cdf(count, quantile, high - 1) <= tail * (1 + 1e-9)
        assert high == 1 or 1 - binomial_cdf(count, quantile, high - 2) > tail * (1 - 1e-9)


def test_the_least_number_of_rounds_is_the_least_with_an_upper_end():
    least = confidence.least_rounds()
    assert least == 368  # 0.99 ** 368 is the first power below 0.025
    assert confidence.enclosing(least)[1] == least
    assert confidence.enclosing(least - 1)[1] is None


def test_no_values_are_an_error():
    with pytest.raises(ValueError, match="no interval of 0 values"):
        confidence.enclosing(0)


@pytest.mark.parametrize(
    ("name", "p99"),
    [
        ("exponential", EXPONENTIAL_P99),
        ("lognormal", math.exp(2.3263478740408408)),
        ("uniform", 0.99),
    ],
)
def test_it_holds_the_p99_of_independent_rounds(name, p99):
    def draw(rng):
        return {
            "exponential": lambda: rng.exponential(100, (800, 1)),
            "lognormal": lambda: rng.lognormal(0, 1, (800, 1)),
            "uniform": lambda: rng.random((800, 1)),
        }[name]()

    assert coverage(draw, p99) >= 0.94


def test_ranks_that_are_slow_together_count_once():
    """All ranks of a round have the same time: a hundred ranks know no more than one."""

    def draw(rng):
        return np.repeat(rng.exponential(100, (800, 1)), 100, axis=1)

    assert coverage(draw, EXPONENTIAL_P99, runs=200) >= 0.94


def test_rounds_that_are_slow_together_count_once():
    """Every time lasts for eight rounds."""

    def draw(rng):
        return np.repeat(rng.exponential(100, 500), 8)[:, None]

    assert coverage(draw, EXPONENTIAL_P99) >= 0.94
    counted = [
        confidence.independent_rounds(draw(np.random.default_rng(s))[:, 0]) for s in range(50)
    ]
    assert np.median(counted) == pytest.approx(500, rel=0.15)


def test_independent_rounds_are_counted_each():
    counted = [
        confidence.independent_rounds(np.random.default_rng(seed).exponential(100, 2000))
        for seed in range(50)
    ]
    assert np.median(counted) >= 1900


def test_more_rounds_make_it_narrower():
    widths = []
    for rounds in (400, 4000, 40000):
        low, high = confidence.interval(np.random.default_rng(1).exponential(100, (rounds, 1)))
        widths.append(high - low)
    assert widths[0] > 2 * widths[1] > 4 * widths[2]


@given(
    st.lists(st.floats(0.1, 1e6), min_size=1, max_size=600),
    st.integers(1, 4),
    st.floats(0.5, 20),
)
def test_it_holds_the_measured_p99_and_scales_with_the_times(values, ranks, factor):
    times = np.array(values)[:, None] * np.linspace(1, 2, ranks)
    low, high = confidence.interval(times)
    p99 = np.quantile(times, 0.99, method="inverted_cdf")
    assert low <= p99
    assert high is None or p99 <= high
    scaled = confidence.interval(times * factor)
    assert scaled[0] == pytest.approx(low * factor)
    assert (scaled[1] is None) == (high is None)
