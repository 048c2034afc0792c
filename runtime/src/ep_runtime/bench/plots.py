"""The report's pictures of times and waits, drawn in the palette that is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ep_runtime.bench.canvas import Palette, new_axes
from ep_runtime.bench.results import blamed_ranks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

_MOST_BINS = 36
_LOG_SCALE_FROM = 3.0  # max over median above which a linear axis hides the bulk
_MAX_NAMED_HOSTS = 12
_MAX_LINED_HOSTS = 64
_HEAT_LEVELS = 16
_STYLES = {"p50": "-", "p95": "--", "p99": ":"}


def distribution(
    palette: Palette, samples_us: Sequence[float], figures: Mapping[str, Any]
) -> Figure:
    """Draw a histogram of all timed calls with the percentiles marked.

    ``figures`` are the summary of ``samples_us``; long tails get a logarithmic axis.
    """
    from matplotlib.ticker import (  # noqa: PLC0415 - an optional dependency
        LogLocator,
        MaxNLocator,
        NullFormatter,
        StrMethodFormatter,
    )

    values = np.asarray(samples_us, dtype=np.float64)
    low, high = float(values.min()), float(values.max())
    figure, axes = new_axes(palette, 4.0, 2.3)
    bins = min(_MOST_BINS, max(8, 2 * round(len(values) ** 0.5)))
    logarithmic = low > 0 and high > _LOG_SCALE_FROM * figures["p50_us"]
    if logarithmic:
        edges = np.geomspace(low, high, bins + 1)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 3.0), numticks=6))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        pad = max(high - low, 0.02 * high, 1e-3) * 0.02
        edges = np.linspace(low - pad, high + pad, bins + 1)
        axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.6g}"))
    axes.hist(values, bins=list(edges), color=palette.accent, alpha=0.85, linewidth=0)
    axes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    # Room above the bars where the percentiles are named, one line each so none overlap.
    axes.set_ylim(top=axes.get_ylim()[1] * 1.45)
    places = {key: figures[f"{key}_us"] for key in _STYLES}
    to_left = {key: _position(axes, at) > 0.8 for key, at in places.items()}
    # A name beside its line must not lie across the next one, which ends below or begins above.
    order = ("p50", "p99", "p95") if to_left["p99"] else ("p50", "p95", "p99")
    for line, key in enumerate(order):
        at, left = places[key], to_left[key]
        height = 0.99 - 0.11 * line
        axes.axvline(at, ymax=height, color=palette.ink, linewidth=1.2, linestyle=_STYLES[key])
        axes.annotate(
            key,
            xy=(at, height),
            xycoords=("data", "axes fraction"),
            xytext=(-4 if left else 4, 0),
            textcoords="offset points",
            ha="right" if left else "left",
            va="top",
            color=palette.ink,
            fontsize=10,
        )
    unit = "microseconds, logarithmic" if logarithmic else "microseconds"
    axes.set_xlabel(unit, color=palette.muted, fontsize=10)
    axes.set_ylabel("calls", color=palette.muted, fontsize=10)
    return figure


def _position(axes: Axes, at: float) -> float:
    """Where ``at`` of the horizontal axis lies, 0 left to 1 right."""
    return float(axes.transAxes.inverted().transform(axes.transData.transform((at, 0)))[0])


def by_rank(palette: Palette, report: Mapping[str, Any], operation: str, width_in: float) -> Figure:
    """Draw each rank's median with a line from its 10th to its 99th percentile.

    Hosts are told apart by bands; ranks that are to blame have the warning colour.
    """
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter  # noqa: PLC0415 - as above

    ranks = report["per_rank"]
    slow = blamed_ranks(report)
    place = {entry["rank"]: index for index, entry in enumerate(ranks)}
    figure, axes = new_axes(palette, width_in, 2.7)
    size = 5.0 if len(ranks) <= 64 else 2.5
    for group, colour in (
        ([entry for entry in ranks if entry["rank"] not in slow], palette.accent),
        ([entry for entry in ranks if entry["rank"] in slow], palette.warn),
    ):
        if not group:
            continue
        at = [place[entry["rank"]] for entry in group]
        spread = np.array([np.percentile(e["samples"][operation], [10, 50, 99]) for e in group])
        axes.vlines(at, spread[:, 0], spread[:, 2], color=colour, linewidth=size / 2, alpha=0.5)
        axes.plot(at, spread[:, 1], "o", color=colour, markersize=size, markeredgewidth=0)
    _mark_hosts(palette, axes, report["hosts"], place)
    axes.set_ylim(bottom=0)
    axes.set_xlim(-0.6, len(ranks) - 0.4)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.6g}"))
    axes.set_xlabel("rank", color=palette.muted, fontsize=10)
    axes.set_ylabel("microseconds", color=palette.muted, fontsize=10)
    return figure


def heat_map(
    palette: Palette, report: Mapping[str, Any], operation: str, by_host: bool = False
) -> Figure:
    """Draw the waits of every rank (rows) for every other one (columns).

    ``by_host``: one cell for two hosts, with the longest wait between any of their ranks. Where
    ranks are more than pixels a picture of them all would lose the one that matters.

    Few levels of colour on a logarithmic scale, so that a thousand ranks make a picture of less
    than a megabyte; one pixel a cell, so that it can be enlarged.
    """
    import matplotlib as mpl  # noqa: PLC0415 - an optional dependency
    from matplotlib.colors import BoundaryNorm  # noqa: PLC0415
    from matplotlib.ticker import StrMethodFormatter  # noqa: PLC0415

    waits = np.array(report["waits"][operation], dtype=np.float64)  # null becomes NaN
    np.fill_diagonal(waits, np.nan)
    hosts = report["hosts"]
    if by_host:
        waits = _longest_by_host(waits, hosts)
        hosts = [{"name": host["name"], "ranks": [index]} for index, host in enumerate(hosts)]
    known = waits[np.isfinite(waits)]
    low, high = np.percentile(known, [1, 100]) if known.size else (1.0, 2.0)
    low = max(low, high / 1e4, 0.1)
    bounds = np.geomspace(low, max(high, 2 * low), _HEAT_LEVELS + 1)
    figure, axes = new_axes(palette, 7.2, 6.2)
    axes.yaxis.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    picture = axes.imshow(
        np.ma.masked_invalid(waits),
        cmap=mpl.colormaps["cividis"].resampled(_HEAT_LEVELS),
        norm=BoundaryNorm(bounds, _HEAT_LEVELS, extend="neither", clip=True),
        interpolation="none",
    )
    bar = figure.colorbar(picture, ax=axes, shrink=0.8, ticks=bounds[:: _HEAT_LEVELS // 4])
    bar.ax.yaxis.set_major_formatter(StrMethodFormatter("{x:,.3g}"))
    bar.ax.minorticks_off()
    bar.ax.tick_params(colors=palette.muted, labelcolor=palette.muted, labelsize=10)
    bar.set_label("microseconds, logarithmic", color=palette.muted, fontsize=10)
    bar.outline.set_visible(False)
    _mark_host_blocks(palette, axes, hosts)
    axes.set_xlabel("waited for", color=palette.muted, fontsize=10)
    axes.set_ylabel("waiting", color=palette.muted, fontsize=10)
    return figure


def _longest_by_host(
    waits: NDArray[np.float64], hosts: Sequence[Mapping[str, Any]]
) -> NDArray[np.float64]:
    """Give the longest wait between any two ranks of two hosts, [hosts, hosts]."""
    known = np.nan_to_num(waits, nan=-1.0)
    rows = np.array([known[host["ranks"]].max(axis=0) for host in hosts])
    longest = np.array([rows[:, host["ranks"]].max(axis=1) for host in hosts]).T
    return np.where(longest >= 0, longest, np.nan)


def _mark_host_blocks(palette: Palette, axes: Axes, hosts: Sequence[Mapping[str, Any]]) -> None:
    """Draw lines between hosts whose ranks are adjacent, and name hosts while there is room."""
    firsts = [min(host["ranks"]) for host in hosts]
    if len(hosts) <= _MAX_LINED_HOSTS:
        for first in firsts[1:]:
            axes.axhline(first - 0.5, color=palette.line, linewidth=0.6)
            axes.axvline(first - 0.5, color=palette.line, linewidth=0.6)
    step = -(-len(hosts) // _MAX_NAMED_HOSTS)
    named = range(0, len(hosts), step)
    middles = [float(np.mean(hosts[index]["ranks"])) for index in named]
    names = [hosts[index]["name"] for index in named]
    axes.set_xticks(middles, names, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(middles, names)


def _mark_hosts(
    palette: Palette,
    axes: Axes,
    hosts: Sequence[Mapping[str, Any]],
    place: Mapping[int, int],
) -> None:
    """Shade every other host; name them where there is room. Ranks of a host may be scattered."""
    if len(hosts) < 2:
        return
    for index, host in enumerate(hosts):
        places = sorted(place[rank] for rank in host["ranks"])
        contiguous = places[-1] - places[0] == len(places) - 1
        if contiguous and index % 2 == 1:
            axes.axvspan(
                places[0] - 0.5, places[-1] + 0.5, color=palette.line, alpha=0.45, linewidth=0
            )
        if contiguous and len(hosts) <= _MAX_NAMED_HOSTS:
            axes.annotate(
                host["name"],
                xy=((places[0] + places[-1]) / 2, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                va="bottom",
                color=palette.muted,
                fontsize=9,
            )
