"""How long each rank waited for each other one: from the runtime's counts to microseconds.

The runtime adds up the waits for each source rank: nanoseconds with the reference backend, and
clock cycles of every GPU thread that waited with the others. Here they become microseconds of one
wait, which is what a kernel loses to a late source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ep_runtime.bench.correctness import Received

TIMED = ("dispatch", "combine")

_NS_PER_US = 1000.0
_CALIBRATION_CYCLES = 20_000_000  # about 10 ms
_MOST_BLOCKS = 5
# Waits near zero differ by factors that mean nothing: this share of the operation is added.
SHIFT_SHARE = 0.05


@dataclass(frozen=True)
class WaitCounts:
    """One row for each timed call, to be given to it: int64 [calls, ranks] on the device."""

    dispatch: torch.Tensor
    combine: torch.Tensor

    @classmethod
    def allocate(cls, calls: int, ranks: int, device: torch.device) -> WaitCounts:
        """Make counts of zero."""
        return cls(*(torch.zeros((calls, ranks), dtype=torch.int64, device=device) for _ in TIMED))

    @classmethod
    def joined(cls, parts: Sequence[WaitCounts]) -> WaitCounts:
        """Put the rows of ``parts`` one after another."""
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in TIMED))


@dataclass(frozen=True)
class WaitScale:
    """What turns counts into microseconds: ticks of the clock, and waits by source rank [R]."""

    ticks_per_us: float
    dispatch: NDArray[np.float64]
    combine: NDArray[np.float64]

    def microseconds(self, operation: str, counts: torch.Tensor) -> NDArray[np.float64]:
        """Mean wait for each source, [calls, ranks]; NaN for a source that nobody waits for."""
        waits = getattr(self, operation)
        with np.errstate(divide="ignore", invalid="ignore"):
            ticks = np.where(waits > 0, counts.cpu().numpy() / waits, np.nan)
        return ticks / self.ticks_per_us


def reference_scale(ranks: int) -> WaitScale:
    """One wait of a nanosecond clock for each source."""
    return WaitScale(_NS_PER_US, np.ones(ranks), np.ones(ranks))


def device_scale(
    received: Received, topk_idx: torch.Tensor, ranks: int, device: torch.device
) -> WaitScale:
    """Count what the kernels wait for, given one dispatch's results and its ``topk_idx`` [T, K].

    In a dispatch there is a count for each local expert and a flag for each row that arrives; in
    a combine there is a flag for each selection.
    """
    ranges, src_info = received.layout_range.cpu(), received.src_info.cpu()
    begins, counts = ranges >> 32, ranges & 0xFFFFFFFF
    local_experts = ranges.shape[0]
    dispatch = np.full(ranks, float(local_experts))
    for source in range(ranks):
        tokens = [
            src_info[expert, int(begins[expert, source]) :][: int(counts[expert, source])]
            for expert in range(local_experts)
        ]
        dispatch[source] += np.unique(torch.cat(tokens).numpy()).size
    selected = topk_idx.cpu()
    owners = selected[selected >= 0].div(local_experts, rounding_mode="floor")
    combine = torch.bincount(owners, minlength=ranks).double().numpy()
    return WaitScale(_cycles_per_us(device), dispatch, combine)


def _cycles_per_us(device: torch.device) -> float:
    """Measure the clock that the kernels count their waits in, at its speed under load."""
    rates = []
    for _ in range(3):
        begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        torch.cuda._sleep(_CALIBRATION_CYCLES)  # type: ignore[no-untyped-call]
        end.record()
        torch.cuda.synchronize(device)
        rates.append(_CALIBRATION_CYCLES / (begin.elapsed_time(end) * 1e3))
    return float(np.median(rates))


def low_median(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Give the lowest median of a fifth of the run, [columns], of ``values`` [calls, columns]."""
    return np.asarray(np.min(_block_medians(values), axis=0))


def _block_medians(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Give the medians of parts of the run, [parts, columns], of ``values`` [calls, columns]."""
    blocks = np.array_split(values, min(_MOST_BLOCKS, len(values)))
    return np.array([np.median(block, axis=0) for block in blocks])


def median_error(values: NDArray[np.float64], shift: float) -> float:
    """Give the standard error of the logarithm of a typical column's median.

    ``values`` [calls, columns] plus ``shift``. It is taken from how the medians of the run's parts
    differ, so that disturbances that last for several calls count for what they are.
    """
    parts = np.log(_block_medians(values) + shift)
    if len(parts) < 2 or np.isnan(parts).all():
        return 0.0
    spread = np.std(parts, axis=0, ddof=1) / np.sqrt(len(parts))
    return float(np.median(spread[~np.isnan(spread)]))


@dataclass(frozen=True)
class WaitFigures:
    """One rank's waits for each source in one operation, and its own share of the time.

    ``p50_us`` [ranks]: median over the timed calls. ``low_us`` [ranks]: the lowest median of a
    fifth of the run, so what is only high for a while is not high here. ``own_us``: median time of
    a call less its longest wait. ``error``: standard error of a typical ``p50_us``, as a share.
    """

    p50_us: NDArray[np.float32]
    low_us: NDArray[np.float32]
    own_us: float
    error: float = 0.0

    @classmethod
    def of(cls, waits_us: NDArray[np.float64], calls_us: Sequence[float]) -> WaitFigures:
        """Sum up ``waits_us`` [calls, ranks] of calls that took ``calls_us`` [calls]."""
        longest = np.nanmax(waits_us, axis=1)
        return cls(
            p50_us=np.median(waits_us, axis=0).astype(np.float32),
            low_us=low_median(waits_us).astype(np.float32),
            error=median_error(waits_us, SHIFT_SHARE * float(np.median(calls_us))),
            own_us=round(float(np.median(np.maximum(np.asarray(calls_us) - longest, 0.0))), 3),
        )


def lateness(barriers_us: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    """How late each rank came to each barrier, [ranks, barriers], from the times spent in them.

    All leave a barrier together, so who is in it for the shortest time came last, and was late by
    as much as the first one waited longer.
    """
    waited = np.asarray(barriers_us, dtype=np.float64)
    return np.asarray(waited.max(axis=0) - waited)
