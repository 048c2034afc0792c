"""When rounds are steady, on series whose transient is known."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from ep_runtime.bench import steady
from hypothesis import given
from hypothesis import strategies as st

SEEDS = range(200)


def noise(seed, rounds, level=100.0, deviation=3.0):
    return np.random.default_rng(seed).normal(level, deviation, rounds)


def share_steady(draw):
    return np.mean([steady.is_steady(draw(seed)) for seed in SEEDS])


@pytest.mark.parametrize("rounds", [20, 40, 200])
def test_equal_rounds_are_steady_in_nearly_every_look(rounds):
    assert share_steady(lambda seed: noise(seed, rounds)) >= 0.95
    heavy = [np.random.default_rng(seed).lognormal(0, 1, rounds) for seed in SEEDS]
    assert np.mean([steady.is_steady(times) for times in heavy]) >= 0.95


@pytest.mark.parametrize("rounds", [20, 40, 100])
def test_a_step_is_steady_once_it_is_in_the_first_half(rounds):
    def stepped(at):
        def draw(seed):
            times = noise(seed, rounds)
            times[:at] += 50
            return times

        return draw

    assert share_steady(stepped(rounds // 2)) >= 0.95
    assert share_steady(stepped(3 * rounds // 4)) == 0


@pytest.mark.parametrize("rounds", [20, 60, 200])
def test_what_still_becomes_faster_or_slower_is_not_steady(rounds):
    for slope in (-200.0, 200.0):
        drift = np.linspace(0, slope, rounds)
        assert share_steady(lambda seed, drift=drift: 300 + noise(seed, rounds) + drift) == 0


def test_a_decay_is_steady_when_it_is_within_the_noise():
    def decayed(rounds):
        return lambda seed: noise(seed, rounds) + 400 * np.exp(-np.arange(rounds) / 8)

    assert share_steady(decayed(20)) == 0
    assert share_steady(decayed(40)) < 0.05
    assert share_steady(decayed(160)) >= 0.95


def test_single_slow_rounds_do_not_decide():
    """One round in ten takes a hundred times as long."""

    def draw(seed):
        times = noise(seed, 80)
        times[np.random.default_rng(seed).random(80) < 0.1] *= 100
        return times

    assert share_steady(draw) >= 0.95


def test_a_change_that_does_not_matter_is_none():
    """Half a percent, seen beyond doubt."""
    times = np.repeat([100.5, 100.0], 500) + noise(0, 1000, level=0, deviation=0.01)
    assert steady.shift(times[:500], times[500:]) > 10
    assert steady.is_steady(np.concatenate((times[:500], times)))


@pytest.mark.parametrize("rounds", [0, 1, 19])
def test_too_few_rounds_say_nothing(rounds):
    assert not steady.is_steady([1.0] * rounds)
    assert steady.is_steady([1.0] * 20)


values = st.lists(st.integers(1, 30), min_size=1, max_size=12)


@given(values, values)
def test_the_shift_is_mann_and_whitneys(before, after):
    pairs = list(product(before, after))
    u = sum((a > b) + (a == b) / 2 for a, b in pairs)
    mean = len(pairs) / 2
    deviation = (len(pairs) * (len(before) + len(after) + 1) / 12) ** 0.5
    expected = (u - mean) / deviation
    found = steady.shift(np.array(before, dtype=float), np.array(after, dtype=float))
    assert found == pytest.approx(expected, abs=1e-9)


@given(times=st.lists(st.integers(1, 10**6), min_size=20, max_size=80), power=st.integers(-3, 10))
def test_units_do_not_matter(times, power):
    first = np.array(times, dtype=np.float64)
    assert steady.is_steady(first) == steady.is_steady(first * 2.0**power)
