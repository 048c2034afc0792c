"""Timing of dispatch, combine and both together.

On the CPU every operation is timed alone behind a barrier, so that the wait for a late peer is
not in its figure. On a GPU operations are enqueued back to back and timed by events: each
combine needs all peers, so it aligns the ranks for what follows without the host. The time spent
in the barriers says who came late to them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, repeat
from typing import Any

import torch

from ep_runtime.bench.statistics import OPERATIONS
from ep_runtime.bench.waits import WaitCounts

# Rounds enqueued at a time, behind a spinning kernel that lets the host run ahead of the GPU.
_ROUNDS_PER_BATCH = 8
_SPIN_MARGIN = 2.0  # over the time that the host was seen to need
_SPIN_MOST_S = 0.05  # a backend that blocks the host needs no lead, and could never get one
_CYCLES_PER_S = 2e9  # no GPU's clock is much above


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


@dataclass(frozen=True)
class Operations:
    """The calls to time: ``dispatch`` gives a handle, ``combine`` takes it.

    Both add their waits to int64 [ranks], or to nothing. ``barrier`` holds the host until all
    ranks are there.
    """

    dispatch: Callable[[torch.Tensor | None], Any]
    combine: Callable[[Any, torch.Tensor | None], object]
    barrier: Callable[[], None]


def clock_of(device: torch.device) -> str:
    """How calls on ``device`` are timed, in words for the report."""
    if device.type == "cuda":
        return "CUDA events, back to back"
    return "perf_counter, barrier before each call"


def measure(
    operations: Operations,
    device: torch.device,
    iters: int,
    warmup: int,
    waits: WaitCounts,
    advance: Callable[[int], None],
) -> Samples:
    """Time ``iters`` rounds after ``warmup`` untimed ones. Collective.

    Dispatch and combine alone add to the rows of ``waits`` ([iters, ranks]); the pair is timed
    without. ``advance(n)`` is told of every ``n`` finished rounds, warm-up included.
    """
    if device.type == "cuda":
        return _measure_cuda(operations, iters, warmup, waits, advance)
    return _measure_cpu(operations, iters, warmup, waits, advance)


def _measure_cpu(
    operations: Operations,
    iters: int,
    warmup: int,
    waits: WaitCounts,
    advance: Callable[[int], None],
) -> Samples:
    samples = Samples()
    uncounted = torch.zeros_like(waits.dispatch[0])
    clock = time.perf_counter_ns

    def time_call(call: Callable[[], Any], into: list[float]) -> Any:
        entered = clock()
        operations.barrier()
        begin = clock()
        result = call()
        into.append((clock() - begin) / 1e3)
        samples.barrier.append((begin - entered) / 1e3)
        return result

    def both() -> None:
        operations.combine(operations.dispatch(None), None)

    for number in range(-warmup, iters):
        if number == 0:
            samples = Samples()
        # Warm-up goes the same way, so its counts have to go somewhere.
        counts = (
            (uncounted, uncounted)
            if number < 0
            else (waits.dispatch[number], waits.combine[number])
        )
        handle = time_call(partial(operations.dispatch, counts[0]), samples.dispatch)
        time_call(partial(operations.combine, handle, counts[1]), samples.combine)
        time_call(both, samples.pair)
        advance(1)
    return samples


def _batches(rounds: int) -> Iterator[int]:
    while rounds > 0:
        size = min(rounds, _ROUNDS_PER_BATCH)
        yield size
        rounds -= size


def _measure_cuda(
    operations: Operations,
    iters: int,
    warmup: int,
    waits: WaitCounts,
    advance: Callable[[int], None],
) -> Samples:
    samples = Samples()
    uncounted = torch.zeros_like(waits.dispatch[0])

    def mark() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def run_batch(
        counts: Iterable[tuple[torch.Tensor, torch.Tensor]], spin_s: float
    ) -> list[tuple[torch.cuda.Event, ...]]:
        torch.cuda.synchronize()
        entered = time.perf_counter_ns()
        operations.barrier()
        samples.barrier.append((time.perf_counter_ns() - entered) / 1e3)
        torch.cuda._sleep(int(spin_s * _CYCLES_PER_S))  # type: ignore[no-untyped-call]
        # The first pair takes the skew with which the ranks left the barrier.
        operations.combine(operations.dispatch(None), None)
        marks: list[tuple[torch.cuda.Event, ...]] = []
        for dispatch_counts, combine_counts in counts:
            begin = mark()
            handle = operations.dispatch(dispatch_counts)
            middle = mark()
            operations.combine(handle, combine_counts)
            end = mark()
            operations.combine(operations.dispatch(None), None)
            marks.append((begin, middle, end, mark()))
        return marks

    def untimed(rounds: int) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        return repeat((uncounted, uncounted), rounds)

    def time_host() -> float:
        """Seconds that the host takes to enqueue a whole batch."""
        begin = time.perf_counter()
        run_batch(untimed(_ROUNDS_PER_BATCH), spin_s=0.0)
        return time.perf_counter() - begin

    time_host()  # the first batch pays for what is set up lazily
    spin_s = min(_SPIN_MARGIN * time_host(), _SPIN_MOST_S)
    for size in _batches(warmup):
        run_batch(untimed(size), spin_s)
        advance(size)
    samples = Samples()
    rows = zip(waits.dispatch, waits.combine)
    for size in _batches(iters):
        marks = run_batch(islice(rows, size), spin_s)
        torch.cuda.synchronize()
        advance(size)
        for begin, middle, end, pair_end in marks:
            samples.dispatch.append(begin.elapsed_time(middle) * 1e3)
            samples.combine.append(middle.elapsed_time(end) * 1e3)
            samples.pair.append(end.elapsed_time(pair_end) * 1e3)
    return samples
