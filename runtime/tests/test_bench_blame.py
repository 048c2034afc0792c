"""Who is to blame, on made waits whose answer is known.

Every call of every rank is drawn and summed up as in a run, up to 64 ranks; beyond that the
medians are drawn.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
from ep_runtime.bench.blame import LATE, LINK, RECEIVER, SENDER, OperationWaits, blame
from ep_runtime.bench.waits import SHIFT_SHARE, WaitFigures, lateness, median_error

CALLS = 40
NEAR_US, FAR_US = 8.0, 25.0
CALL_US = 60.0
SLOW_US = 40.0


class Fleet:
    """Waits of a healthy fleet, to which faults are added before they are looked at."""

    def __init__(self, size: int, per_host: int, seed: int, spread: float = 0.3) -> None:
        self.rng = np.random.default_rng(seed)
        self.size, self.per_host = size, per_host
        self.hosts = [f"host-{rank // per_host}" for rank in range(size)]
        same = np.arange(size) // per_host
        base = np.where(same[:, None] == same[None, :], NEAR_US, FAR_US)
        # Cells differ a little for good (cables, rails); calls differ much, with a heavy tail.
        base = base * self.rng.lognormal(0, 0.05, (size, size))
        calls = CALLS if size <= 64 else 1
        sigma = spread if calls > 1 else 1.25 * spread / np.sqrt(CALLS)
        self.waits = base * self.rng.lognormal(0, sigma, (calls, size, size))
        if calls > 1:
            tail = self.rng.random(self.waits.shape) < 0.01
            self.waits = np.where(
                tail, self.waits * self.rng.pareto(1.5, tail.shape) * 5, self.waits
            )
        self.own = CALL_US - FAR_US + self.rng.normal(0, 1, size)
        self.barriers = 5 + self.rng.lognormal(0, 0.5, (size, CALLS))

    def everybody_waits_for(self, ranks, extra=SLOW_US) -> None:
        """Like a rank that is slow to send: its own waits are over when it begins to wait."""
        self.waits[:, :, ranks] += extra
        self.waits[:, ranks, :] = np.maximum(self.waits[:, ranks, :] - extra, 1.0)
        self.own[ranks] += extra

    def verdict(self):
        operations = {}
        for name in ("dispatch", "combine"):
            figures = [
                WaitFigures.of(self.waits[:, rank], np.full(len(self.waits), CALL_US))
                for rank in range(self.size)
            ]
            operations[name] = OperationWaits(
                p50=np.array([item.p50_us for item in figures], dtype=np.float64),
                low=np.array([item.low_us for item in figures], dtype=np.float64),
                own=self.own,
                median=CALL_US,
                error=float(np.median([item.error for item in figures])),
            )
        late = lateness(self.barriers)
        halves = [np.median(half, axis=1) for half in np.array_split(late, 2, axis=1)]
        error = median_error(late.T, SHIFT_SHARE * CALL_US)
        lateness_us = np.median(late, axis=1), np.min(halves, axis=0)
        return blame(self.hosts, operations, lateness_us, error)


SHAPES = [(2, 1), (2, 2), (3, 1), (4, 1), (4, 2), (4, 4), (8, 2), (8, 8), (16, 8), (64, 8)]


@pytest.mark.parametrize(("size", "per_host"), SHAPES)
def test_nobody_is_named_in_a_healthy_fleet(size, per_host):
    runs = 300 if size <= 8 else 60 if size == 16 else 12
    named = [seed for seed in range(runs) if Fleet(size, per_host, seed).verdict()]
    assert named == []


@pytest.mark.parametrize("spread", [0.1, 0.6])
def test_nor_with_less_or_more_noise(spread):
    assert not any(Fleet(8, 2, seed, spread).verdict() for seed in range(200))


@pytest.mark.parametrize(("size", "per_host"), [(3, 1), (4, 1), (8, 2), (8, 1)])
def test_nor_on_a_machine_that_is_busy_for_seconds_at_a_time(size, per_host):
    """Few calls, and what disturbs a rank or a link goes on over several of them."""
    named = []
    for seed in range(300):
        fleet = Fleet(size, per_host, seed, spread=0.8)
        for shape in ((size, size), (1, size), (size, 1)):
            stretches = fleet.rng.lognormal(0, 0.6, (5, *shape))
            fleet.waits = fleet.waits[:20] * np.repeat(stretches, 4, axis=0)
        fleet.barriers = fleet.barriers[:, :20] * np.repeat(
            fleet.rng.lognormal(0, 0.6, (size, 5)), 4, axis=1
        )
        named += [seed] if fleet.verdict() else []
    assert len(named) <= 1, named


def test_and_a_sleeping_rank_is_still_named_there():
    for seed in range(40):
        fleet = Fleet(8, 2, seed, spread=0.8)
        stretches = fleet.rng.lognormal(0, 0.6, (10, 8, 8))
        fleet.waits = fleet.waits * np.repeat(stretches, 4, axis=0)
        fleet.everybody_waits_for([4], extra=20 * FAR_US)
        culprit = only(fleet.verdict())
        assert (culprit.kind, culprit.ranks) == (SENDER, (4,))


@pytest.mark.parametrize("seed", range(3))
def test_nor_among_many(seed):
    assert Fleet(1024, 8, seed).verdict() == []


def only(found):
    assert len(found) == 1, found
    return found[0]


LINES = [(3, 1), (4, 1), (4, 2), (4, 4), (8, 2), (8, 8), (16, 8), (24, 8), (64, 8), (1024, 8)]


def seeds(size):
    return range(40 if size <= 8 else 8 if size <= 64 else 1)


@pytest.mark.parametrize(("size", "per_host"), LINES)
def test_a_slow_sender(size, per_host):
    for seed in seeds(size):
        fleet = Fleet(size, per_host, seed)
        slow = seed % size
        fleet.everybody_waits_for([slow])
        culprit = only(fleet.verdict())
        assert (culprit.kind, culprit.ranks) == (SENDER, (slow,))
        assert set(culprit.excess_us) == {"dispatch", "combine"}
        assert culprit.excess_us["dispatch"] == pytest.approx(SLOW_US, rel=0.4)


@pytest.mark.parametrize(("size", "per_host"), [s for s in LINES if s[1] > 1])
def test_a_slow_receiver(size, per_host):
    for seed in seeds(size):
        fleet = Fleet(size, per_host, seed)
        slow = (seed + 1) % size
        fleet.waits[:, slow, :] += SLOW_US
        culprit = only(fleet.verdict())
        assert (culprit.kind, culprit.ranks) == (RECEIVER, (slow,))


@pytest.mark.parametrize(("size", "per_host"), [(3, 1), (4, 1), (8, 1), (8, 2), (64, 8)])
@pytest.mark.parametrize("way", ["in", "out"])
def test_a_slow_way_into_or_out_of_a_rank(size, per_host, way):
    """Only what crosses the network is slow: it is the NIC or its cable, not the GPU."""
    for seed in seeds(size):
        fleet = Fleet(size, per_host, seed)
        slow = seed % size
        far = [rank for rank in range(size) if fleet.hosts[rank] != fleet.hosts[slow]]
        if way == "in":
            fleet.waits[:, slow, far] += SLOW_US
        else:
            fleet.waits[:, far, slow] += SLOW_US
        culprit = only(fleet.verdict())
        assert (culprit.kind, culprit.ranks, culprit.peers) == (LINK, (slow,), ())


@pytest.mark.parametrize(("size", "per_host"), [(3, 1), (4, 1), (4, 4), (8, 2), (64, 8), (1024, 8)])
def test_a_slow_link_between_two_ranks(size, per_host):
    for seed in seeds(size):
        fleet = Fleet(size, per_host, seed)
        source, receiver = seed % size, (seed + size // 2) % size
        fleet.waits[:, receiver, source] += 10 * SLOW_US
        culprit = only(fleet.verdict())
        assert (culprit.kind, culprit.ranks, culprit.peers) == (LINK, (source,), (receiver,))


def test_two_ranks_cannot_tell_their_link_from_its_ends():
    for seed in range(40):
        fleet = Fleet(2, 1, seed)
        fleet.waits[:, 0, 1] += 10 * SLOW_US
        culprit = only(fleet.verdict())
        assert (culprit.kind, culprit.ranks, culprit.peers) == (LINK, (1,), (0,))


HOSTS = [(6, 2), (8, 2), (32, 8), (64, 8), (1024, 8)]


# Both ways of one of three hosts are four of six ways: then the slow ones are the majority.
WAYS = [
    (size, per_host, way)
    for size, per_host in HOSTS
    for way in ("in", "out", "both")
    if (size, way) != (6, "both")
]


@pytest.mark.parametrize(("size", "per_host", "way"), WAYS)
def test_a_slow_network_link_of_a_host(size, per_host, way):
    for seed in seeds(size):
        fleet = Fleet(size, per_host, seed)
        members = np.arange(per_host)
        others = np.arange(per_host, size)
        if way in ("in", "both"):
            fleet.waits[np.ix_(range(len(fleet.waits)), members, others)] += SLOW_US
        if way in ("out", "both"):
            fleet.waits[np.ix_(range(len(fleet.waits)), others, members)] += SLOW_US
        culprit = only(fleet.verdict())
        assert (culprit.kind, culprit.ranks, culprit.peers) == (LINK, tuple(members), ())
        assert culprit.whole_host


@pytest.mark.parametrize(("size", "per_host"), HOSTS)
def test_a_host_that_is_slow_itself(size, per_host):
    """All its ranks are late alike, so they hardly wait for each other: own time tells."""
    for seed in seeds(size):
        fleet = Fleet(size, per_host, seed)
        members, others = np.arange(per_host), np.arange(per_host, size)
        fleet.waits[np.ix_(range(len(fleet.waits)), others, members)] += SLOW_US
        fleet.own[members] += SLOW_US
        culprit = only(fleet.verdict())
        assert (culprit.kind, culprit.ranks, culprit.whole_host) == (SENDER, tuple(members), True)


@pytest.mark.parametrize(("size", "per_host"), [(8, 2), (32, 8), (1024, 8)])
def test_a_slow_link_between_two_hosts(size, per_host):
    for seed in seeds(size):
        fleet = Fleet(size, per_host, seed)
        receivers, sources = np.arange(per_host), np.arange(per_host, 2 * per_host)
        fleet.waits[np.ix_(range(len(fleet.waits)), receivers, sources)] += 10 * SLOW_US
        culprit = only(fleet.verdict())
        assert (culprit.kind, culprit.ranks) == (LINK, tuple(sources))
        assert culprit.peers == tuple(receivers)


@pytest.mark.parametrize("size", [2, 3, 8, 64])
def test_a_late_rank(size):
    for seed in seeds(size):
        fleet = Fleet(size, 2 if size > 3 else 1, seed)
        slow = seed % size
        # It is late and waits for nobody in the barrier, all others wait for it.
        fleet.barriers += 200.0
        fleet.barriers[slow] = 5.0
        culprit = only(fleet.verdict())
        assert (culprit.kind, culprit.ranks) == (LATE, (slow,))
        assert culprit.excess_us["barrier"] == pytest.approx(200, rel=0.2)


def test_a_host_whose_ranks_are_all_late_is_one_culprit():
    fleet = Fleet(8, 2, 0)
    fleet.barriers += 200.0
    fleet.barriers[[4, 5]] = 5.0
    culprit = only(fleet.verdict())
    assert (culprit.kind, culprit.ranks, culprit.whole_host) == (LATE, (4, 5), True)


def test_several_culprits_are_all_named_worst_first():
    fleet = Fleet(64, 8, 1)
    fleet.everybody_waits_for([9], extra=40)
    fleet.everybody_waits_for([33], extra=80)
    fleet.waits[:, 50, 20] += 500
    found = fleet.verdict()
    assert [(item.kind, item.ranks) for item in found] == [
        (LINK, (20,)),
        (SENDER, (33,)),
        (SENDER, (9,)),
    ]


def test_what_was_slow_only_for_a_while_is_not_named():
    fleet = Fleet(8, 2, 2)
    fleet.waits[: CALLS * 3 // 5, :, 3] += 10 * SLOW_US
    assert fleet.verdict() == []


def test_what_costs_little_is_not_named():
    fleet = Fleet(64, 8, 3)
    fleet.everybody_waits_for([9], extra=CALL_US * 0.1)
    assert fleet.verdict() == []


def test_ranks_that_nobody_waits_for_are_left_out():
    fleet = Fleet(8, 2, 4)
    fleet.everybody_waits_for([3])
    fleet.waits[:, 0, 5] = np.nan
    assert only(fleet.verdict()).ranks == (3,)


def test_a_thousand_ranks_take_seconds_at_most():
    fleet = Fleet(1024, 8, 5)
    fleet.everybody_waits_for([9])
    begin = time.process_time()
    fleet.verdict()
    assert time.process_time() - begin < 20
