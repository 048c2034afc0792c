"""A run against a kept one: slower or faster only where the difference is more than noise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ep_runtime.bench.results import PASSED, ReportError
from ep_runtime.bench.statistics import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

_DRAWS = 400
_CONFIDENCE_PERCENT = 99.0
# Runs differ by this much for no reason that either of them could know.
_LEAST_CHANGE = 0.03
# Calls that follow each other are alike, so they are drawn in stretches.
_STRETCH = 10
# What may differ: what was asked for is not what makes the time.
_MAY_DIFFER = (
    *("iters", "warmup", "p99_within", "seed", "timeout_s", "backend"),
    *("full", "sweep", "pairwise"),
)

SAME, SLOWER, FASTER = "same", "slower", "faster"


def compare(report: Mapping[str, Any], kept: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Compare the medians of each operation with those of ``kept``.

    Gives operation -> ``ratio`` (above 1: slower now), the bootstrap interval ``low`` to ``high``
    of it, ``baseline_us`` and ``verdict``: slower or faster when the whole interval is on that
    side of 1 by more than 3 %. Raises ``ReportError`` when the two can't be compared, saying why.
    """
    _require_alike(report, kept)
    rng = np.random.default_rng(0)
    found = {}
    for name in OPERATIONS:
        now, before = _calls(report, name), _calls(kept, name)
        ratios = _medians(now, rng) / _medians(before, rng)
        tail = (100 - _CONFIDENCE_PERCENT) / 2
        low, high = (float(value) for value in np.percentile(ratios, [tail, 100 - tail]))
        verdict = SAME
        if low > 1 + _LEAST_CHANGE:
            verdict = SLOWER
        elif high < 1 - _LEAST_CHANGE:
            verdict = FASTER
        found[name] = {
            "ratio": round(float(np.median(now) / np.median(before)), 4),
            "low": round(low, 4),
            "high": round(high, 4),
            "baseline_us": round(float(np.median(before)), 3),
            "verdict": verdict,
        }
    return found


def _require_alike(report: Mapping[str, Any], kept: Mapping[str, Any]) -> None:
    if not report["correctness"] == kept["correctness"] == PASSED:
        raise ReportError("only runs with right results can be compared with a baseline.")
    facts = {name: (report[name], kept[name]) for name in ("ranks", "backend", "device")}
    for name, value in report["parameters"].items():
        if name not in _MAY_DIFFER:
            facts[name] = value, kept["parameters"].get(name)
    for name, (mine, theirs) in facts.items():
        if mine != theirs:
            raise ReportError(
                f"the baseline has {name} = {theirs} and this run {mine}: they can't be compared."
            )


def _calls(report: Mapping[str, Any], operation: str) -> NDArray[np.float64]:
    """Gather the times of all calls, [calls, ranks]."""
    return np.array([entry["samples"][operation] for entry in report["per_rank"]]).T


def _medians(calls: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Medians over all ranks of calls drawn again in stretches, [draws]."""
    count = len(calls)
    stretch = min(_STRETCH, max(1, count // 4))
    typical = np.median(calls, axis=1)
    starts = rng.integers(0, count - stretch + 1, (_DRAWS, -(-count // stretch)))
    drawn = (starts[:, :, None] + np.arange(stretch)).reshape(_DRAWS, -1)[:, :count]
    return np.asarray(np.median(typical[drawn], axis=1))
