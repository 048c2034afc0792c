"""Curves of a sweep, with what the model and the wire say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ep_runtime.bench.canvas import Palette, new_axes
from ep_runtime.bench.expected import Rates, model_us, wire_us
from ep_runtime.bench.options import SWEPT
from ep_runtime.bench.waits import TIMED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AXIS_NAMES = {
    "num_tokens": "tokens per rank",
    "hidden": "hidden size",
    "num_experts": "experts",
    "num_topk": "top-k",
}


def swept_axes(report: Mapping[str, Any]) -> list[str]:
    """Name what was swept, in the order of the report."""
    return [axis for axis in SWEPT if any(point["axis"] == axis for point in report["sweep"])]


def curve(palette: Palette, report: Mapping[str, Any], axis: str, rates: Rates) -> Figure:
    """Draw dispatch and combine over ``axis``: medians, shaded up to the 99th percentile.

    Dashed: the model's time. Dotted: the least time in which the bytes fit through the wire.
    """
    from matplotlib.lines import Line2D  # noqa: PLC0415 - an optional dependency
    from matplotlib.ticker import (  # noqa: PLC0415
        LogLocator,
        NullFormatter,
        NullLocator,
        StrMethodFormatter,
    )

    points = [point for point in report["sweep"] if point["axis"] == axis]
    at = [point[axis] for point in points]
    figure, axes = new_axes(palette, 5.2, 3.5)
    has_model = has_wire = False
    for name, colour, marker in zip(TIMED, (palette.accent, palette.other), "os"):
        p50, p99 = (
            np.array([point[name][key] for point in points]) for key in ("p50_us", "p99_us")
        )
        axes.fill_between(at, p50, p99, color=colour, alpha=0.18, linewidth=0)
        axes.plot(at, p50, marker=marker, markersize=5, linewidth=1.6, color=colour, label=name)
        model = [model_us(report, point, rates).get(name) for point in points]
        wire = [wire_us(report, point[name], rates) for point in points]
        has_model = _line(axes, at, model, colour, "--") or has_model
        has_wire = _line(axes, at, wire, colour, ":") or has_wire
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(at, [f"{value:,}" for value in at])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=8))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.6g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(AXIS_NAMES[axis], color=palette.muted, fontsize=10)
    axes.set_ylabel("microseconds, logarithmic", color=palette.muted, fontsize=10)
    handles: list[Any] = axes.get_legend_handles_labels()[0]
    if has_model:
        handles.append(Line2D([], [], color=palette.muted, linestyle="--", label="model"))
    if has_wire:
        handles.append(Line2D([], [], color=palette.muted, linestyle=":", label="wire limit"))
    axes.legend(
        handles=handles,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=4,
        frameon=False,
        fontsize=10,
        labelcolor=palette.ink,
        handlelength=1.8,
        columnspacing=1.2,
    )
    return figure


def _line(
    axes: Any, at: Sequence[int], values: Sequence[float | None], colour: str, style: str
) -> bool:
    """Draw what is known of ``values``; say whether anything was."""
    known = [(x, value) for x, value in zip(at, values) if value]
    if known:
        axes.plot(*zip(*known), linestyle=style, linewidth=1.4, color=colour)
    return bool(known)
