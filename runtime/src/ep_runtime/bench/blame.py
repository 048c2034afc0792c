"""Who makes the others wait: from waits by source and receiver to sender, receiver, link or rank.

A rank that sends late shows as a column that is high for everybody, one that gets everything late
as a row, a bad link as cells. Lines are judged by medians, so that a few bad cells make no bad
line, strongest first; the cells of a line that is to blame are left out of what follows. Hosts are
judged before their ranks, on the median over the cells between two hosts.

A bad network path and a late sender look alike in the waits for other hosts. They are told apart
by what does not cross the network: waits inside the host, and the rank's own share of the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

from ep_runtime.bench.waits import SHIFT_SHARE

SENDER, RECEIVER, LINK, LATE = "sender", "receiver", "link", "late"

Array = NDArray[np.float64]

# What costs less than this share of the operation, or these microseconds, is nobody's fault.
_SHARE_THAT_MATTERS = 0.15
_LEAST_US = 2.0
# Waits of a healthy fleet vary by as much, as a factor: of single cells, and of medians of lines.
_USUAL_SPREAD = {"cell": 0.15, "line": 0.05}
# What lies this far beyond the most extreme of n normal values is no noise.
_MARGIN_SIGMAS = 3.0
_MAD_TO_SIGMA = 1.4826
_ENOUGH_FOR_MAD = 20
# How much of an effect has to be there too in the quietest part of the run, inside the host or in
# the rank's own time, to count there.
_CONFIRMED_SHARE = 0.5
_MOST_CULPRITS = 8


@dataclass(frozen=True)
class OperationWaits:
    """One operation over all ranks, microseconds; rows wait, columns are waited for.

    ``p50`` and ``low`` [ranks, ranks]: medians over the run, and in its best part; NaN where
    nothing is waited for. ``own`` [ranks]: each rank's share of the time. ``median``: of a call.
    ``error``: how far a typical ``p50`` would be off if the run were made again, its standard error
    as a share (see ``waits.median_error``).
    """

    p50: Array
    low: Array
    own: Array
    median: float
    error: float = 0.0


@dataclass
class Culprit:
    """What is slow. ``ranks`` are to blame, for a link as sources, with ``peers`` as receivers.

    A link without ``peers`` is the way in and out of the ranks. ``whole_host``: all of a host's
    ranks alike. ``excess_us``: operation -> microseconds above ``usual_us``.
    """

    kind: str
    ranks: tuple[int, ...]
    peers: tuple[int, ...] = ()
    whole_host: bool = False
    excess_us: dict[str, float] = field(default_factory=dict)
    usual_us: dict[str, float] = field(default_factory=dict)

    @property
    def worst_us(self) -> float:
        """The largest excess of any operation."""
        return max(self.excess_us.values())


def blame(
    hosts: Sequence[str],
    operations: Mapping[str, OperationWaits],
    late_us: tuple[Array, Array],
    late_error: float = 0.0,
) -> list[Culprit]:
    """Name who is slow, worst first; empty for a fleet of equals.

    ``hosts`` [ranks]: each rank's host. ``late_us``: each rank's lateness at barriers, median over
    the run and lowest of its parts, [ranks] each; ``late_error`` is as in ``OperationWaits``.
    """
    found: list[Culprit] = []
    for name, waits in operations.items():
        for culprit in _Fleet(hosts, waits).culprits():
            culprit.excess_us = {name: culprit.excess_us[""]}
            culprit.usual_us = {name: culprit.usual_us[""]}
            _merge(found, culprit)
    found = _folded(found)
    median = min(waits.median for waits in operations.values())
    blamed = {rank for culprit in found for rank in culprit.ranks + culprit.peers}
    for culprit in _late(hosts, late_us, median, late_error):
        if not blamed & set(culprit.ranks):
            found.append(culprit)
    found.sort(key=lambda culprit: -culprit.worst_us)
    return found[:_MOST_CULPRITS]


def _merge(found: list[Culprit], new: Culprit) -> None:
    """Add ``new``, or join it with what is known about the same ranks."""
    for index, known in enumerate(found):
        if (known.ranks, known.peers) == (new.ranks, new.peers):
            worse, other = sorted((known, new), key=lambda culprit: -culprit.worst_us)
            worse.excess_us = {**other.excess_us, **worse.excess_us}
            worse.usual_us = {**other.usual_us, **worse.usual_us}
            found[index] = worse
            return
    found.append(new)


def _folded(found: list[Culprit]) -> list[Culprit]:
    """Join what is about a whole host and its ranks: one cause has several looks.

    A host starved of CPU time sends late and receives late, some of its ranks more than others.
    """
    hosts = [culprit for culprit in found if culprit.whole_host and not culprit.peers]
    for host in hosts:
        inside = set(host.ranks)
        parts = [
            culprit
            for culprit in found
            if culprit is not host and (inside >= set(culprit.ranks) or inside & set(culprit.peers))
        ]
        host.kind = max((host, *parts), key=lambda culprit: culprit.worst_us).kind
        found = [culprit for culprit in found if culprit not in parts]
    return found


def _lower_median(values: Array, axis: int | None = None) -> Array:
    """Give the median, of an even number the lower middle one: half of two is no majority.

    NaN counts as absent.
    """
    if axis is None:
        values, axis = values.ravel(), 0
    ordered = np.sort(values, axis=axis)  # NaN comes last
    count = np.count_nonzero(~np.isnan(values), axis=axis, keepdims=True)
    middle = np.maximum((count - 1) // 2, 0)
    return np.take_along_axis(ordered, middle, axis=axis).squeeze(axis)


def _sigma(values: Array, least: float) -> float:
    """Give a robust standard deviation, at least ``least``; just that of too few to tell."""
    if np.count_nonzero(~np.isnan(values)) < _ENOUGH_FOR_MAD:
        return least
    spread = np.abs(values - _lower_median(values))
    return max(least, _MAD_TO_SIGMA * float(_lower_median(spread)))


def _bound(values: Array, least: float) -> float:
    """Give the distance from the median beyond which one of ``values`` is no noise."""
    count = max(2, int(np.count_nonzero(~np.isnan(values))))
    sigmas = sqrt(2 * log(count)) + _MARGIN_SIGMAS
    if count >= _ENOUGH_FOR_MAD:
        sigmas *= 1 + 4 / count  # the MAD of few is itself uncertain
    return sigmas * _sigma(values, least)


def _matters(median_us: float) -> float:
    return max(_LEAST_US, _SHARE_THAT_MATTERS * median_us)


@dataclass(frozen=True)
class _Line:
    axis: int  # 0: a column, what all wait for; 1: a row, who waits for all
    index: int
    level: float  # logarithm of its median, above the centre


class _Fleet:
    """One operation's waits as logarithms around the centre of their class.

    Classes are waits inside a host and between hosts; both are equal to 0 in a fleet of equals.
    """

    def __init__(self, hosts: Sequence[str], waits: OperationWaits) -> None:
        self.waits = waits
        self.matters = _matters(waits.median)
        self.shift = SHIFT_SHARE * waits.median
        # Calls that went badly for a rank went badly for all its waits: no part of a line's error
        # is averaged out over its cells.
        self.spread = {kind: max(usual, waits.error) for kind, usual in _USUAL_SPREAD.items()}
        self.size = len(hosts)
        names = list(dict.fromkeys(hosts))
        self.host_of = np.array([names.index(host) for host in hosts])
        self.members = [np.nonzero(self.host_of == index)[0] for index in range(len(names))]
        self.near: NDArray[np.bool_] = self.host_of[:, None] == self.host_of[None, :]
        itself = np.eye(self.size, dtype=bool)
        self.classes = [
            mask
            for mask in (self.near & ~itself, ~self.near)
            if np.any(mask & ~np.isnan(waits.p50))
        ]
        self.levels, self.centres = self._centred(waits.p50)
        self.low, self.low_centres = self._centred(waits.low)

    def _centred(self, waits: Array) -> tuple[Array, Array]:
        """Logarithms above the centre of their class, and the centres, [ranks, ranks]."""
        levels = np.full(waits.shape, np.nan)
        centres = np.full(waits.shape, np.nan)
        for mask in self.classes:
            logs = np.log(waits[mask] + self.shift)
            centre = _lower_median(logs)
            levels[mask] = logs - centre
            centres[mask] = np.exp(centre) - self.shift
        return levels, centres

    def culprits(self) -> list[Culprit]:
        found: list[Culprit] = []
        if 1 < len(self.members) < self.size:
            found += self._slow_hosts()
        if self.size > 2:
            found += self._slow_ranks()
        return found + self._slow_links(np.argwhere(self._exceeding(self.levels)))

    # Units are hosts or ranks; `levels` are of units and hold NaN on the diagonal.

    def _slow_hosts(self) -> list[Culprit]:
        found = []
        between = self._between_hosts(self.levels)
        for line in self._lines(between) if len(self.members) > 2 else []:
            cells = self._cells(line.axis, self.members[line.index]) & ~self.near
            found += self._line_culprit(line, self.members[line.index], cells, whole_host=True)
        between = self._between_hosts(self.levels)
        for receiver, source in np.argwhere(self._exceeding(between)):
            cells = np.zeros_like(self.near)
            cells[np.ix_(self.members[receiver], self.members[source])] = True
            found += self._pair_culprit(source, receiver, cells)
        return found

    def _between_hosts(self, levels: Array) -> Array:
        """Medians of the cells between two hosts, [hosts, hosts]; NaN on the diagonal."""
        count, most = len(self.members), max(len(ranks) for ranks in self.members)
        padded = np.full((count * most, count * most), np.nan)
        place = np.concatenate(
            [host * most + np.arange(len(ranks)) for host, ranks in enumerate(self.members)]
        )
        order = np.concatenate(self.members)
        padded[np.ix_(place, place)] = levels[np.ix_(order, order)]
        blocks = padded.reshape(count, most, count, most).transpose(0, 2, 1, 3)
        between = _lower_median(blocks.reshape(count, count, most * most), axis=2)
        np.fill_diagonal(between, np.nan)
        return between

    def _slow_ranks(self) -> list[Culprit]:
        found = []
        for line in self._lines(self.levels.copy()):
            ranks = np.array([line.index])
            found += self._line_culprit(line, ranks, self._cells(line.axis, ranks))
        return found

    def _cells(self, axis: int, ranks: NDArray[np.intp]) -> NDArray[np.bool_]:
        cells = np.zeros_like(self.near)
        if axis == 0:
            cells[:, ranks] = True
        else:
            cells[ranks, :] = True
        known: NDArray[np.bool_] = cells & ~np.isnan(self.levels)
        return known

    def _lines(self, levels: Array) -> list[_Line]:
        """Find columns and rows that stand out, strongest first, each taken out of ``levels``."""
        found: list[_Line] = []
        known = levels[~np.isnan(levels)]
        floor = max(
            self.spread["line"], 1.25 * _sigma(known, self.spread["cell"]) / sqrt(len(levels))
        )
        while len(found) < 2 * _MOST_CULPRITS:
            lines = []
            for axis in (0, 1):
                medians = _lower_median(levels, axis=axis)
                if np.isnan(medians).all():
                    continue
                centre = float(_lower_median(medians))
                bound = _bound(medians, floor)
                index = int(np.nanargmax(medians))
                if medians[index] - centre > bound:
                    lines.append(_Line(axis, index, float(medians[index])))
            if not lines:
                break
            line = max(lines, key=lambda line: line.level)
            found.append(line)
            levels[(slice(None), line.index) if line.axis == 0 else line.index] = np.nan
        return found

    def _line_culprit(
        self,
        line: _Line,
        ranks: NDArray[np.intp],
        cells: NDArray[np.bool_],
        whole_host: bool = False,
    ) -> list[Culprit]:
        excess = self._excess(cells)
        if excess is None:
            return []
        kind = self._kind(line.axis, ranks, excess)
        self.levels[cells] = np.nan
        return [self._culprit(kind, ranks, (), excess, cells, whole_host)]

    def _pair_culprit(self, source: int, receiver: int, cells: NDArray[np.bool_]) -> list[Culprit]:
        excess = self._excess(cells)
        if excess is None:
            return []
        sources, receivers = self.members[source], self.members[receiver]
        self.levels[cells] = np.nan
        if self._own_excess(sources) >= _CONFIRMED_SHARE * excess:
            return [self._culprit(SENDER, sources, (), excess, cells, whole_host=True)]
        return [self._culprit(LINK, sources, receivers, excess, cells, whole_host=True)]

    def _excess(self, cells: NDArray[np.bool_]) -> float | None:
        """Microseconds by which ``cells`` are above the usual; None when it isn't worth a word.

        It isn't when it is small beside the operation, or not there for the whole of the run.
        """
        excess = float(_lower_median((self.waits.p50 - self.centres)[cells]))
        low = float(_lower_median((self.waits.low - self.low_centres)[cells]))
        if excess < self.matters or low < _CONFIRMED_SHARE * excess:
            return None
        return excess

    def _kind(self, axis: int, ranks: NDArray[np.intp], excess: float) -> str:
        """Tell a slow rank or host from a slow way to it."""
        itself = SENDER if axis == 0 else RECEIVER
        cells = self._cells(axis, ranks)
        near, far = cells & self.near, cells & ~self.near
        if not far.any():
            return itself
        if self._own_excess(ranks) >= _CONFIRMED_SHARE * excess:
            return itself
        if near.any():
            inside = float(_lower_median((self.waits.p50 - self.centres)[near]))
            if inside >= _CONFIRMED_SHARE * excess:
                return itself
        return LINK

    def _own_excess(self, ranks: NDArray[np.intp]) -> float:
        others = np.delete(self.waits.own, ranks)
        return float(np.median(self.waits.own[ranks]) - np.median(others))

    def _exceeding(self, levels: Array) -> NDArray[np.bool_]:
        known = levels[~np.isnan(levels)]
        if not known.size:
            return np.zeros(levels.shape, dtype=bool)
        bound = _bound(known, self.spread["cell"])
        exceeding: NDArray[np.bool_] = (
            np.nan_to_num(levels, nan=-np.inf) - _lower_median(known) > bound
        )
        return exceeding

    def _slow_links(self, cells: NDArray[np.intp]) -> list[Culprit]:
        found = []
        for receiver, source in cells:
            mask = np.zeros_like(self.near)
            mask[receiver, source] = True
            excess = self._excess(mask)
            if excess is not None:
                ranks, peers = np.array([source]), np.array([receiver])
                found.append(self._culprit(LINK, ranks, peers, excess, mask, False))
        return sorted(found, key=lambda culprit: -culprit.worst_us)[:_MOST_CULPRITS]

    def _culprit(
        self,
        kind: str,
        ranks: NDArray[np.intp],
        peers: NDArray[np.intp] | tuple[()],
        excess: float,
        cells: NDArray[np.bool_],
        whole_host: bool,
    ) -> Culprit:
        usual = float(_lower_median(self.centres[cells]))
        return Culprit(
            kind,
            tuple(int(rank) for rank in ranks),
            tuple(int(rank) for rank in peers),
            whole_host,
            {"": round(excess, 1)},
            {"": round(usual, 1)},
        )


def _late(
    hosts: Sequence[str], late_us: tuple[Array, Array], median_us: float, error: float
) -> list[Culprit]:
    """Find ranks that come late to the operations, those of one host together."""
    late, low = late_us
    if len(late) < 2:
        return []
    shift = SHIFT_SHARE * median_us
    levels = np.log(late + shift)
    centre, usual, low_usual = _lower_median(levels), _lower_median(late), _lower_median(low)
    bound = _bound(levels, max(_USUAL_SPREAD["cell"], error))
    named = [
        rank
        for rank in range(len(late))
        if levels[rank] - centre > bound
        and late[rank] - usual >= _matters(median_us)
        and low[rank] - low_usual >= _CONFIRMED_SHARE * (late[rank] - usual)
    ]
    found = []
    for host in dict.fromkeys(hosts[rank] for rank in named):
        members = [rank for rank in range(len(hosts)) if hosts[rank] == host]
        together = len(members) > 1 and set(members) <= set(named)
        for ranks in [members] if together else [[r] for r in named if hosts[r] == host]:
            excess = float(np.median(late[ranks]) - usual)
            found.append(
                Culprit(
                    LATE,
                    tuple(ranks),
                    whole_host=together,
                    excess_us={"barrier": round(excess, 1)},
                    usual_us={"barrier": round(float(usual), 1)},
                )
            )
    return found
