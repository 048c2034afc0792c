"""Figures from samples: percentiles and logical bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ep_runtime.bench.options import HIDDEN_MULTIPLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

OPERATIONS = ("dispatch", "combine", "pair")

_HEADER_BYTES = 16
_SCALE_BYTES = 4


def logical_bytes(
    selections: int, hidden: int, use_fp8: bool, use_logfmt: bool = False
) -> dict[str, int]:
    """Bytes that one rank moves per operation, one message per (token, expert) selection.

    The formula is DeepEP's, so figures compare: FP8 dispatch H + 4 H/128 + 16, BF16 2 H either
    way, LogFMT combine 10/8 H + 4 H/128. The share that stays on the rank itself is included.
    """
    scales = _SCALE_BYTES * hidden // HIDDEN_MULTIPLE
    fp8 = hidden + scales + _HEADER_BYTES
    bf16 = 2 * hidden
    back = hidden * 10 // 8 + scales if use_logfmt else bf16
    dispatch = selections * (fp8 if use_fp8 else bf16)
    combine = selections * back
    return {"dispatch": dispatch, "combine": combine, "pair": dispatch + combine}


def spread(samples_us: Sequence[float] | NDArray[np.float64]) -> dict[str, float]:
    """Percentiles (linear interpolation) and the largest of microsecond samples."""
    values = np.asarray(samples_us, dtype=np.float64)
    if values.size == 0:
        raise ValueError("no samples to summarize")
    p50, p95, p99 = (float(v) for v in np.percentile(values, [50, 95, 99]))
    figures = {"p50_us": p50, "p95_us": p95, "p99_us": p99, "max_us": float(values.max())}
    return {name: round(value, 3) for name, value in figures.items()}


def gigabytes_per_second(size: float, time_us: float) -> float:
    """Give the rate in units of 10^9 bytes a second, with four digits; 0 for no time."""
    return float(f"{size / (time_us * 1e3):.4g}") if time_us > 0 else 0.0


def summarize(samples_us: Sequence[float], bytes_per_rank: int) -> dict[str, Any]:
    """``spread``, with the least, the mean and the rate at the median.

    ``logical_gbps`` is ``bytes_per_rank`` over p50, in units of 10^9 bytes a second.
    """
    figures = spread(samples_us)
    p50 = float(np.median(samples_us))
    return {
        **figures,
        "min_us": round(float(np.min(samples_us)), 3),
        "mean_us": round(float(np.mean(samples_us)), 3),
        "bytes": bytes_per_rank,
        "logical_gbps": gigabytes_per_second(bytes_per_rank, p50),
    }
