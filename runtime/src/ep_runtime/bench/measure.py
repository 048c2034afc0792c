"""Timing of dispatch, combine and both together.

On the CPU every operation is timed alone behind a barrier, so that the wait for a late peer is
not in its figure. On a GPU operations are enqueued back to back and timed by events: each
combine needs all peers, so it aligns the ranks for what follows without the host.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

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

    def as_dict(self) -> dict[str, list[float]]:
        """Plain lists, rounded to the nanosecond."""
        return {
            name: [round(value, 3) for value in values]
            for name, values in (
                ("dispatch", self.dispatch),
                ("combine", self.combine),
                ("pair", self.pair),
            )
        }


@dataclass(frozen=True)
class Operations:
    """The calls to time: ``dispatch`` gives a handle, ``combine`` takes it.

    ``barrier`` holds the host until all ranks are there.
    """

    dispatch: Callable[[], Any]
    combine: Callable[[Any], object]
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
    advance: Callable[[int], None],
) -> Samples:
    """Time ``iters`` rounds after ``warmup`` untimed ones. Collective.

    ``advance(n)`` is told of every ``n`` finished rounds, warm-up included.
    """
    if device.type == "cuda":
        return _measure_cuda(operations, iters, warmup, advance)
    return _measure_cpu(operations, iters, warmup, advance)


def _measure_cpu(
    operations: Operations, iters: int, warmup: int, advance: Callable[[int], None]
) -> Samples:
    samples = Samples()
    clock = time.perf_counter_ns
    for round_index in range(warmup + iters):
        operations.barrier()
        begin = clock()
        handle = operations.dispatch()
        dispatch_ns = clock() - begin

        operations.barrier()
        begin = clock()
        operations.combine(handle)
        combine_ns = clock() - begin

        operations.barrier()
        begin = clock()
        operations.combine(operations.dispatch())
        pair_ns = clock() - begin

        if round_index >= warmup:
            samples.dispatch.append(dispatch_ns / 1e3)
            samples.combine.append(combine_ns / 1e3)
            samples.pair.append(pair_ns / 1e3)
        advance(1)
    return samples


def _batches(rounds: int) -> Iterator[int]:
    while rounds > 0:
        size = min(rounds, _ROUNDS_PER_BATCH)
        yield size
        rounds -= size


def _measure_cuda(
    operations: Operations, iters: int, warmup: int, advance: Callable[[int], None]
) -> Samples:
    def mark() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def run_batch(rounds: int, spin_s: float) -> list[tuple[torch.cuda.Event, ...]]:
        torch.cuda.synchronize()
        operations.barrier()
        torch.cuda._sleep(int(spin_s * _CYCLES_PER_S))  # type: ignore[no-untyped-call]
        # The first pair takes the skew with which the ranks left the barrier.
        operations.combine(operations.dispatch())
        marks: list[tuple[torch.cuda.Event, ...]] = []
        for _ in range(rounds):
            begin = mark()
            handle = operations.dispatch()
            middle = mark()
            operations.combine(handle)
            end = mark()
            operations.combine(operations.dispatch())
            marks.append((begin, middle, end, mark()))
        return marks

    def time_host() -> float:
        """Seconds that the host takes to enqueue a whole batch."""
        begin = time.perf_counter()
        run_batch(_ROUNDS_PER_BATCH, spin_s=0.0)
        return time.perf_counter() - begin

    time_host()  # the first batch pays for what is set up lazily
    spin_s = min(_SPIN_MARGIN * time_host(), _SPIN_MOST_S)
    for size in _batches(warmup):
        run_batch(size, spin_s)
        advance(size)
    samples = Samples()
    for size in _batches(iters):
        marks = run_batch(size, spin_s)
        torch.cuda.synchronize()
        advance(size)
        for begin, middle, end, pair_end in marks:
            samples.dispatch.append(begin.elapsed_time(middle) * 1e3)
            samples.combine.append(middle.elapsed_time(end) * 1e3)
            samples.pair.append(end.elapsed_time(pair_end) * 1e3)
    return samples
