"""Figures from samples: percentiles, logical bytes, and ranks that stand out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ep_runtime.bench.options import HIDDEN_MULTIPLE

OPERATIONS = ("dispatch", "combine", "pair")

_HEADER_BYTES = 16
_SCALE_BYTES = 4
# The normal distribution's ratio of standard deviation to median absolute deviation.
_MAD_TO_SIGMA = 1.4826


def logical_bytes(selections: int, hidden: int, use_fp8: bool) -> dict[str, int]:
    """Bytes that one rank moves per operation, one message per (token, expert) selection.

    The formula is DeepEP's, so figures compare: FP8 dispatch H + 4 H/128 + 16, BF16 2 H either
    way. The share that stays on the rank itself is included.
    """
    fp8 = hidden + _SCALE_BYTES * hidden // HIDDEN_MULTIPLE + _HEADER_BYTES
    bf16 = 2 * hidden
    dispatch = selections * (fp8 if use_fp8 else bf16)
    combine = selections * bf16
    return {"dispatch": dispatch, "combine": combine, "pair": dispatch + combine}


def summarize(samples_us: Sequence[float], bytes_per_rank: int) -> dict[str, Any]:
    """Percentiles (linear interpolation) and the rate at the median, of microsecond samples.

    ``logical_gbps`` is ``bytes_per_rank`` over p50, in units of 10^9 bytes a second.
    """
    values = np.asarray(samples_us, dtype=np.float64)
    if values.size == 0:
        raise ValueError("no samples to summarize")
    p50, p90, p99 = (float(v) for v in np.percentile(values, [50, 90, 99]))
    return {
        "p50_us": round(p50, 3),
        "p90_us": round(p90, 3),
        "p99_us": round(p99, 3),
        "min_us": round(float(values.min()), 3),
        "max_us": round(float(values.max()), 3),
        "mean_us": round(float(values.mean()), 3),
        "bytes": bytes_per_rank,
        "logical_gbps": round(bytes_per_rank / (p50 * 1e3), 3) if p50 > 0 else 0.0,
    }


def slow_ranks(medians_us: Sequence[float]) -> set[int]:
    """Find the indices of medians far above the others: by 5 robust sigmas and by a tenth.

    Both bounds are needed: the first alone marks microseconds of noise on a fleet of equals,
    the second alone marks a fleet whose ranks simply vary. Fewer than three ranks have no
    majority to differ from.
    """
    values = np.asarray(medians_us, dtype=np.float64)
    if values.size < 3:
        return set()
    middle = float(np.median(values))
    sigma = _MAD_TO_SIGMA * float(np.median(np.abs(values - middle)))
    bound = middle + max(5 * sigma, 0.1 * middle)
    return {int(index) for index in np.nonzero(values > bound)[0]}
