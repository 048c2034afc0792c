"""Timing of dispatch, combine and both together, as the report's main figures give it.

On the CPU every operation is timed alone behind a barrier, so that the wait for a late peer is
not in its figure. On a GPU operations are enqueued back to back and timed by events: each
combine needs all peers, so it aligns the ranks for what follows without the host. The time spent
in the barriers says who came late to them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from ep_runtime.bench.clocks import DeviceChain, Round
from ep_runtime.bench.pace import Pace, Rounds
from ep_runtime.bench.statistics import OPERATIONS
from ep_runtime.bench.waits import WaitCounts


@dataclass
class Samples:
    """Microseconds of each timed call of one rank."""

    dispatch: list[float] = field(default_factory=list)
    combine: list[float] = field(default_factory=list)
    pair: list[float] = field(default_factory=list)
    # Of each barrier before a timed call on the CPU, before a batch of them on a GPU.
    barrier: list[float] = field(default_factory=list)

    def as_dict(self) -> dict[str, list[float]]:
        """Plain lists of the operations, rounded to the nanosecond."""
        return {name: [round(value, 3) for value in getattr(self, name)] for name in OPERATIONS}

    def add(self, other: Samples) -> None:
        """Put the calls of ``other`` after these."""
        for name in (*OPERATIONS, "barrier"):
            getattr(self, name).extend(getattr(other, name))


@dataclass(frozen=True)
class Operations:
    """The calls to time: ``dispatch`` gives a handle, ``combine`` takes it.

    Both add their waits to int64 [ranks], or to nothing. ``barrier`` holds the host until all
    ranks are there.
    """

    dispatch: Callable[[torch.Tensor | None], Any]
    combine: Callable[[Any, torch.Tensor | None], object]
    barrier: Callable[[], None]

    def pair(self) -> object:
        """Dispatch, then combine; nothing is counted."""
        return self.combine(self.dispatch(None), None)

    def round(
        self,
        dispatch_waits: torch.Tensor | None = None,
        combine_waits: torch.Tensor | None = None,
    ) -> Round:
        """Make the three stretches of a round, one after another."""
        handle = self.dispatch(dispatch_waits)
        yield "dispatch"
        self.combine(handle, combine_waits)
        yield "combine"
        self.pair()
        yield "pair"


@dataclass(frozen=True)
class Measured:
    """What one rank measured, after warm-up. ``waits``: a row for each timed round."""

    samples: Samples
    waits: WaitCounts
    rounds: Rounds


def clock_of(device: torch.device) -> str:
    """How calls on ``device`` are timed, in words for the report."""
    if device.type == "cuda":
        return "CUDA events, back to back"
    return "perf_counter, barrier before each call"


def measure(
    operations: Operations,
    device: torch.device,
    ranks: int,
    pace: Pace,
    advance: Callable[[int], None] = lambda _: None,
) -> Measured:
    """Time as many rounds as ``pace`` wants, after as many untimed ones. Collective.

    Dispatch and combine alone count their waits for each of ``ranks``; the pair is timed without.
    ``advance(n)`` is told of every ``n`` finished rounds, warm-up included.
    """
    clock: _HostRounds | _DeviceRounds
    clock = _DeviceRounds(operations) if device.type == "cuda" else _HostRounds(operations)

    def run(rounds: int) -> tuple[Samples, WaitCounts]:
        waits = WaitCounts.allocate(rounds, ranks, device)
        samples = clock.run(waits)
        advance(rounds)
        return samples, waits

    untimed: list[float] = []
    wanted, steady = pace.more_warmup(untimed)
    while wanted:
        # Goes the same way, so that what is set up lazily is set up.
        untimed += run(wanted)[0].pair
        wanted, steady = pace.more_warmup(untimed)
    samples, counts = Samples(), []
    wanted, percent = pace.more_rounds(samples.pair)
    while wanted:
        more, waits = run(wanted)
        samples.add(more)
        counts.append(waits)
        wanted, percent = pace.more_rounds(samples.pair)
    rounds = Rounds(len(untimed), len(samples.pair), steady, percent)
    return Measured(samples, WaitCounts.joined(counts), rounds)


class _HostRounds:
    """Each call alone behind a barrier, by the host's clock."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    def run(self, waits: WaitCounts) -> Samples:
        """Time a round for each row of ``waits``."""
        operations, samples = self._operations, Samples()
        clock = time.perf_counter_ns

        def time_call(call: Callable[[], Any], into: list[float]) -> Any:
            entered = clock()
            operations.barrier()
            begin = clock()
            result = call()
            into.append((clock() - begin) / 1e3)
            samples.barrier.append((begin - entered) / 1e3)
            return result

        for dispatch_waits, combine_waits in zip(waits.dispatch, waits.combine):
            handle = time_call(partial(operations.dispatch, dispatch_waits), samples.dispatch)
            time_call(partial(operations.combine, handle, combine_waits), samples.combine)
            time_call(operations.pair, samples.pair)
        return samples


class _DeviceRounds:
    """Calls back to back, by events."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._chain = DeviceChain(operations.barrier, operations.pair)
        self._chain.calibrate(self._plain)

    def _plain(self, count: int) -> Iterator[Round]:
        return (self._operations.round() for _ in range(count))

    def run(self, waits: WaitCounts) -> Samples:
        """Time a round for each row of ``waits``."""
        self._chain.forget_barriers()
        rows = zip(waits.dispatch, waits.combine)
        times = self._chain.run(self._operations.round(*row) for row in rows)
        return Samples(**times, barrier=self._chain.barriers_us)
