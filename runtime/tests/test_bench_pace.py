"""How many rounds a run takes, decided from the slowest rank by all ranks alike."""

from __future__ import annotations

import numpy as np
import pytest
from ep_runtime.bench import confidence
from ep_runtime.bench.pace import Pace, p99_percent


def pace(others=(), **changes):
    """A pace that meets ``others``, who have the times of this rank plus a constant."""

    def share(mine):
        times, late = mine
        return [mine, *(([time + more for time in times], late) for more in others)]

    return Pace(**{"iters": 100, "warmup": 20, "p99_within": 0.0, "share": share, **changes})


def drive(decide, draw):
    """Give rounds as long as they are wanted; how many, and what the last decision said."""
    times = []
    wanted, said = decide(times)
    while wanted:
        times += draw(wanted).tolist()
        wanted, said = decide(times)
    return len(times), said


def test_warm_up_ends_when_rounds_are_steady():
    rng = np.random.default_rng(0)
    made = iter(np.concatenate((np.linspace(900, 100, 40), rng.normal(100, 1, 1000))))
    rounds, steady = drive(pace().more_warmup, lambda n: np.array([next(made) for _ in range(n)]))
    assert steady is True
    assert 60 <= rounds <= 100  # the forty falling ones must be out of the second half


def test_warm_up_gives_up_on_what_never_becomes_steady():
    made = iter(np.linspace(1000, 1, 200))
    rounds, steady = drive(pace().more_warmup, lambda n: np.array([next(made) for _ in range(n)]))
    assert (rounds, steady) == (200, False)


@pytest.mark.parametrize("warmup", [0, 1, 19])
def test_a_short_warm_up_is_taken_as_it_is(warmup):
    made = np.linspace(1000, 1, 100)
    assert drive(pace(warmup=warmup).more_warmup, lambda n: made[:n]) == (warmup, None)


def test_the_slowest_rank_decides():
    """This rank is steady, but another one is not: its times fall."""

    def share(mine):
        times, late = mine
        return [mine, (np.linspace(2000, 1000, len(times)).tolist(), late)]

    rounds, steady = drive(pace(share=share).more_warmup, lambda n: np.full(n, 100.0))
    assert (rounds, steady) == (200, False)


def test_exactly_the_asked_rounds_without_a_wish_for_the_p99():
    rng = np.random.default_rng(0)
    rounds, percent = drive(pace().more_rounds, lambda n: rng.exponential(100, n))
    assert (rounds, percent) == (100, None)  # too few for an interval


def test_rounds_are_added_until_the_p99_is_known_so_well():
    rng = np.random.default_rng(0)
    asked = pace(p99_within=10.0, others=(5.0, 50.0))
    rounds, percent = drive(asked.more_rounds, lambda n: rng.exponential(100, n))
    assert rounds >= confidence.least_rounds()
    assert percent <= 10.0
    wider = p99_percent((rng.exponential(100, rounds // 2) + 50).tolist())
    assert wider is None or wider > percent


def test_narrow_times_take_no_more_than_the_least():
    rng = np.random.default_rng(0)
    rounds, percent = drive(pace(p99_within=10.0).more_rounds, lambda n: rng.uniform(100, 101, n))
    assert rounds == confidence.least_rounds()
    assert percent < 1


def test_there_is_an_end_to_it():
    heavy = np.random.default_rng(0)
    asked = pace(iters=10, p99_within=0.001)
    rounds, percent = drive(asked.more_rounds, lambda n: heavy.pareto(1.0, n))
    assert rounds == 1000
    assert percent > 0.001


def test_one_rank_without_time_ends_it_for_all():
    def share(mine):
        return [mine, (mine[0], True)]

    rng = np.random.default_rng(0)
    asked = pace(p99_within=0.001, share=share)
    assert drive(asked.more_rounds, lambda n: rng.exponential(100, n))[0] == 100
