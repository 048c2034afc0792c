"""Times of calls that follow each other: by the host's clock, or by events on a GPU.

A round is an iterator that makes its calls and, after each stretch to be timed, yields its name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import torch

Round = Iterator[str]
Times = dict[str, list[float]]  # microseconds of each stretch

# Rounds enqueued at a time, behind a spinning kernel that lets the host run ahead of the GPU.
ROUNDS_PER_BATCH = 8
_SPIN_MARGIN = 2.0  # over the time that the host was seen to need
_SPIN_MOST_S = 0.05  # a backend that blocks the host needs no lead, and could never get one
_CYCLES_PER_S = 2e9  # no GPU's clock is much above


def chain_on_host(rounds: Iterable[Round]) -> Times:
    """Time the stretches of ``rounds`` by the host's clock."""
    times: Times = {}
    for stretches in rounds:
        last = time.perf_counter_ns()
        for name in stretches:
            now = time.perf_counter_ns()
            times.setdefault(name, []).append((now - last) / 1e3)
            last = now
    return times


def alone(
    barrier: Callable[[], None], call: Callable[[], Any], device: torch.device
) -> tuple[Any, float]:
    """Make a call behind ``barrier``: its result, and the time until that is there, in us."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
    barrier()
    begin = time.perf_counter_ns()
    result = call()
    if on_gpu:
        torch.cuda.synchronize()
    return result, (time.perf_counter_ns() - begin) / 1e3


class DeviceChain:
    """Rounds enqueued in batches, timed by events: the host's pace is in no figure.

    ``barrier`` holds the host until all ranks are there, before each batch. ``align``, a call that
    needs all ranks, takes the skew with which they left it. ``barriers_us`` are the times spent
    in barriers since ``forget_barriers``.
    """

    def __init__(self, barrier: Callable[[], None], align: Callable[[], object]) -> None:
        self._barrier = barrier
        self._align = align
        self._spin_s = 0.0
        self.barriers_us: list[float] = []

    def forget_barriers(self) -> None:
        """Start to count anew."""
        self.barriers_us = []

    def calibrate(self, rounds: Callable[[int], Iterable[Round]]) -> None:
        """Learn how long the host takes for a batch of what ``rounds(count)`` makes."""
        self._batch(rounds(ROUNDS_PER_BATCH))  # pays for what is set up lazily
        begin = time.perf_counter()
        self._batch(rounds(ROUNDS_PER_BATCH))
        self._spin_s = min(_SPIN_MARGIN * (time.perf_counter() - begin), _SPIN_MOST_S)

    def run(self, rounds: Iterable[Round]) -> Times:
        """Time the stretches of ``rounds``."""
        times: Times = {}
        left = iter(rounds)
        while batch := list(islice(left, ROUNDS_PER_BATCH)):
            marks = self._batch(batch)
            torch.cuda.synchronize()
            for name, begin, end in marks:
                times.setdefault(name, []).append(begin.elapsed_time(end) * 1e3)
        return times

    def _batch(
        self, rounds: Iterable[Round]
    ) -> list[tuple[str, torch.cuda.Event, torch.cuda.Event]]:
        torch.cuda.synchronize()
        entered = time.perf_counter_ns()
        self._barrier()
        self.barriers_us.append((time.perf_counter_ns() - entered) / 1e3)
        torch.cuda._sleep(int(self._spin_s * _CYCLES_PER_S))  # type: ignore[no-untyped-call]
        self._align()
        marks = []
        for stretches in rounds:
            last = _mark()
            for name in stretches:
                now = _mark()
                marks.append((name, last, now))
                last = now
        return marks


def _mark() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
