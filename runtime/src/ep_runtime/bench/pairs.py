"""A sweep over pairs of hosts: every link is loaded alone, so that a bad one can't hide among many.

In a round each host exchanges tokens with one other, all pairs at once; N hosts meet everybody in
N - 1 rounds (N, with one host idle, when N is odd). The rounds are gone through several times, so
that a disturbance of some seconds hits all pairs alike. Every call is still a call of all ranks:
what is measured is how long a rank waits for those of its partner, which no other pair is in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from ep_runtime.bench.clocks import alone
from ep_runtime.bench.waits import (
    SHIFT_SHARE,
    TIMED,
    WaitCounts,
    WaitScale,
    low_median,
    median_error,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ep_runtime.bench.measure import Operations

# How often the rounds are gone through.
PASSES = 5
# As the report and the verdict call it, beside the operation.
PAIRWISE = {name: f"pairwise {name}" for name in TIMED}


@dataclass(frozen=True)
class PairFigures:
    """One rank's part of a sweep, microseconds, by operation.

    ``p50`` and ``low`` [ranks]: the median wait for each rank of another host, over all calls and
    in the best pass; NaN for ranks of this host. ``own``: median time of a call less its longest
    wait. ``call``: median time of a call. ``error``: standard error of a typical ``p50``, a share.
    """

    p50: dict[str, NDArray[np.float32]]
    low: dict[str, NDArray[np.float32]]
    own: dict[str, float]
    call: dict[str, float]
    error: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TIMED, 0.0))


@dataclass(frozen=True)
class Round:
    """One round on one rank. ``partners``: the ranks that it exchanges tokens with."""

    operations: Operations
    partners: Sequence[int]
    scale: WaitScale


def rounds_of(hosts: int) -> list[list[tuple[int, int]]]:
    """Pair ``hosts`` numbers so that all meet once: a list of pairs for each round.

    The circle method: the first stays, the others move on by one place.
    """
    circle: list[int | None] = [*range(hosts), *([None] if hosts % 2 else [])]
    rounds = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]))
        rounds.append([(a, b) for a, b in pairs if a is not None and b is not None])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return rounds


def partners_of(hosts: Sequence[str], rank: int) -> list[list[int]]:
    """For each round the ranks that ``rank`` exchanges tokens with; ``hosts``: each rank's host."""
    names = list(dict.fromkeys(hosts))
    mine = names.index(hosts[rank])
    found = []
    for pairs in rounds_of(len(names)):
        met = next((pair for pair in pairs if mine in pair), None)
        other = None if met is None else met[1 - met.index(mine)]
        found.append([] if other is None else [r for r, h in enumerate(hosts) if h == names[other]])
    return found


def routing_to(partners: Sequence[int], experts_per_rank: int, shape: torch.Size) -> torch.Tensor:
    """Select experts of ``partners`` in turn, int64 of ``shape`` [tokens, topk].

    As many different ones a token as there are; the rest is -1, as is all without partners.
    """
    tokens, topk = shape
    chosen = torch.full((tokens, topk), -1, dtype=torch.int64)
    experts = [r * experts_per_rank + e for e in range(experts_per_rank) for r in partners]
    width = min(topk, len(experts))
    if width:
        place = torch.arange(tokens)[:, None] * width + torch.arange(width)
        chosen[:, :width] = torch.tensor(experts)[place % len(experts)]
    return chosen


def sweep(
    rounds: Sequence[Round],
    ranks: int,
    device: torch.device,
    iters: int,
    note: Callable[[int], None],
) -> PairFigures:
    """Go through the rounds, ``iters`` calls of each operation a round. Collective.

    ``note`` is told the number of rounds done.
    """
    each = -(-iters // PASSES)
    waits: dict[str, list[NDArray[np.float64]]] = {name: [] for name in TIMED}
    owns: dict[str, list[float]] = {name: [] for name in TIMED}
    times: dict[str, list[float]] = {name: [] for name in TIMED}
    for _ in range(PASSES):
        found = {name: np.full((each, ranks), np.nan) for name in TIMED}
        for part in rounds:
            counts = WaitCounts.allocate(each, ranks, device)
            spent = _calls(part.operations, counts, device)
            for name in TIMED:
                measured = part.scale.microseconds(name, getattr(counts, name))[:, part.partners]
                found[name][:, part.partners] = measured
                times[name] += spent[name]
                if part.partners:
                    longest = np.nanmax(measured, axis=1)
                    owns[name] += np.maximum(np.array(spent[name]) - longest, 0).tolist()
            note(1)
        for name in TIMED:
            waits[name].append(found[name])
    joined = {name: np.concatenate(waits[name]) for name in TIMED}
    calls = {name: float(np.median(times[name])) for name in TIMED}
    return PairFigures(
        p50={name: np.median(joined[name], axis=0).astype(np.float32) for name in TIMED},
        low={name: low_median(joined[name]).astype(np.float32) for name in TIMED},
        own={name: float(np.median(owns[name])) for name in TIMED},
        call=calls,
        error={name: median_error(joined[name], SHIFT_SHARE * calls[name]) for name in TIMED},
    )


def _calls(
    operations: Operations, counts: WaitCounts, device: torch.device
) -> dict[str, list[float]]:
    """Make a call of each operation, each behind a barrier, for each row of ``counts``."""
    spent: dict[str, list[float]] = {name: [] for name in TIMED}
    for dispatch_waits, combine_waits in zip(counts.dispatch, counts.combine):
        dispatch = partial(operations.dispatch, dispatch_waits)
        handle, time_us = alone(operations.barrier, dispatch, device)
        spent["dispatch"].append(time_us)
        combine = partial(operations.combine, handle, combine_waits)
        _, time_us = alone(operations.barrier, combine, device)
        spent["combine"].append(time_us)
    return spent


def host_matrix(
    hosts: Sequence[str], waits: NDArray[np.float64]
) -> tuple[list[str], list[list[float | None]]]:
    """Sum up ``waits`` [ranks, ranks] as medians of host for host: the names, and the rows."""
    names = list(dict.fromkeys(hosts))
    members = [[rank for rank, host in enumerate(hosts) if host == name] for name in names]
    rows: list[list[float | None]] = []
    for own in members:
        blocks = [waits[np.ix_(own, other)] for other in members]
        rows.append(
            [
                None if np.isnan(block).all() else round(float(np.nanmedian(block)), 1)
                for block in blocks
            ]
        )
    return names, rows
