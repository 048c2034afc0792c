"""How many rounds a run takes: until they are steady, and until the p99 is sure enough.

Every decision is made from the slowest rank of each round, by all ranks alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ep_runtime.bench import confidence, steady

_MOST_WARMUP = 10  # times what was asked for
_MOST_ROUNDS = 100  # times what was asked for
_GROWTH = 2  # a part of the rounds so far is added at a time


@dataclass(frozen=True)
class Rounds:
    """What a run came to.

    ``steady`` is None where it was not looked at. ``p99_percent``: how far the interval of the
    slowest rank's p99 lies from it, None when there are too few rounds for an interval.
    """

    warmup: int
    timed: int
    steady: bool | None
    p99_percent: float | None


def p99_percent(slowest_us: Sequence[float]) -> float | None:
    """Give how far the ends of the p99's interval lie from it, in percent; None when unbounded."""
    values = np.asarray(slowest_us, dtype=np.float64)
    low, high = confidence.interval(values[:, None])
    p99 = float(np.quantile(values, confidence.P99))
    if high is None or p99 <= 0:
        return None
    return 100 * max(high - p99, p99 - low) / p99


@dataclass
class Pace:
    """Decides for one run.

    ``share`` gives everybody's value of its argument, in rank order; collective. ``out_of_time``
    says of this rank alone whether no more rounds should be added.
    """

    iters: int
    warmup: int
    p99_within: float
    share: Callable[[object], Sequence[object]]
    out_of_time: Callable[[], bool] = lambda: False

    def _slowest(self, times_us: Sequence[float]) -> tuple[list[float], bool]:
        shared = self.share((list(times_us), self.out_of_time()))
        times = [entry[0] for entry in shared]  # type: ignore[index]
        late = any(entry[1] for entry in shared)  # type: ignore[index]
        return np.max(np.asarray(times, dtype=np.float64), axis=0).tolist(), late

    @property
    def looks_for_steady(self) -> bool:
        """Whether warm-up is long enough to be looked at."""
        return self.warmup >= steady.LEAST_ROUNDS

    def more_warmup(self, times_us: Sequence[float]) -> tuple[int, bool | None]:
        """Say how many more untimed rounds to take, and whether they are steady. Collective.

        ``times_us``: this rank's rounds so far.
        """
        done = len(times_us)
        if done < self.warmup:
            return self.warmup - done, None
        if not self.looks_for_steady:
            return 0, None
        slowest, late = self._slowest(times_us)
        found = steady.is_steady(slowest)
        left = _MOST_WARMUP * self.warmup - done
        if found or late or left <= 0:
            return 0, found
        return min(left, max(1, self.warmup // _GROWTH)), found

    def more_rounds(self, times_us: Sequence[float]) -> tuple[int, float | None]:
        """Say how many more timed rounds to take, and how sure the p99 is. Collective."""
        done = len(times_us)
        if done < self.iters:
            return self.iters - done, None
        slowest, late = self._slowest(times_us)
        percent = p99_percent(slowest)
        left = _MOST_ROUNDS * self.iters - done
        sure = percent is not None and percent <= self.p99_within
        if self.p99_within <= 0 or sure or late or left <= 0:
            return 0, percent
        wanted = max(done // _GROWTH, confidence.least_rounds() - done)
        return min(left, wanted), percent
