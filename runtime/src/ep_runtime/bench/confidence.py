"""How sure a percentile is: an interval from order statistics, for any distribution of times.

Of n independent times the number below a percentile is binomial, so two of the sorted times
enclose it with a known probability. Times of one round are not independent (all ranks wait for the
slowest one), and neither are rounds when the slow ones come together; both are counted once.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

P99 = 0.99
CONFIDENCE = 0.95
# Slow rounds with at most so many others between them are one event.
_SAME_EVENT = 1


def least_rounds(quantile: float = P99) -> int:
    """Give how many rounds it takes to bound ``quantile`` from above."""
    return math.ceil(math.log((1 - CONFIDENCE) / 2) / math.log(quantile))


@lru_cache(maxsize=1024)
def enclosing(count: int, quantile: float = P99) -> tuple[int, int | None]:
    """Places (from 1) of the sorted ``count`` independent values that enclose their ``quantile``.

    The second is None when there are too few values.
    """
    if count < 1:
        raise ValueError(f"no interval of {count} values")
    tail = (1 - CONFIDENCE) / 2
    above = 1 - quantile
    high: int | None = None
    cumulated = 0.0
    for exceeding in range(count):
        cumulated += math.exp(
            math.lgamma(count + 1)
            - math.lgamma(exceeding + 1)
            - math.lgamma(count - exceeding + 1)
            + exceeding * math.log(above)
            + (count - exceeding) * math.log(quantile)
        )
        if cumulated <= tail:
            high = count - exceeding
        if cumulated >= 1 - tail:
            return count - exceeding, high
    return 1, high


def independent_rounds(slowest_us: NDArray[np.float64], quantile: float = P99) -> int:
    """Count rounds as they weigh for ``quantile``: those in a cluster of slow ones once.

    ``slowest_us`` [rounds]: time of the slowest rank. The share of clusters among the slow rounds
    is the runs estimate of the extremal index.
    """
    count = len(slowest_us)
    slow = np.flatnonzero(slowest_us > np.quantile(slowest_us, quantile))
    if slow.size == 0:
        return count
    clusters = 1 + int((np.diff(slow) > _SAME_EVENT + 1).sum())
    return max(1, count * clusters // slow.size)


def interval(rounds_us: NDArray[np.float64], quantile: float = P99) -> tuple[float, float | None]:
    """Enclose the ``quantile`` of all values of ``rounds_us`` [rounds, ranks], at 95 %.

    The upper end is None when there are too few independent rounds.
    """
    count = independent_rounds(rounds_us.max(axis=1), quantile)
    values = np.sort(rounds_us, axis=None)

    def at(place: int) -> float:
        return float(values[-(-place * values.size // count) - 1])

    low, high = enclosing(count, quantile)
    return at(low), None if high is None else at(high)
