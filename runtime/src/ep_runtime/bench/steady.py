"""When rounds have stopped to change: the rule by which warm-up ends.

The third quarter of the rounds so far is held against the fourth by their ranks (Mann and Whitney),
so whatever came before may have been slow, and single slow rounds don't decide.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# Rounds below which nothing can be said: quarters of five.
LEAST_ROUNDS = 20
# Beyond what equal quarters show in 2 of 100 looks.
_MOST_DEVIATIONS = 2.33
# What differs by less does not matter, however surely it does.
_SAME = 0.01


def shift(before: NDArray[np.float64], after: NDArray[np.float64]) -> float:
    """Give Mann and Whitney's U of ``before`` over ``after``, in standard deviations.

    Positive where ``before`` has the larger values; ties count half.
    """
    larger = np.sign(np.subtract.outer(before, after)).sum() / 2
    count = len(before) * len(after)
    return float(larger / math.sqrt(count * (len(before) + len(after) + 1) / 12))


def is_steady(times_us: Sequence[float] | NDArray[np.float64]) -> bool:
    """Whether the second half of ``times_us`` [rounds] shows no change any more."""
    values = np.asarray(times_us, dtype=np.float64)
    if len(values) < LEAST_ROUNDS:
        return False
    quarter = len(values) // 4
    before, after = values[-2 * quarter : -quarter], values[-quarter:]
    level = float(np.median(after))
    if abs(float(np.median(before)) - level) <= _SAME * level:
        return True
    return abs(shift(before, after)) <= _MOST_DEVIATIONS
