"""A report as one self-contained HTML page: no script, no network, light and dark and print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ep_runtime.bench import canvas, curves, expected, kinds, plots, results
from ep_runtime.bench.canvas import ON_PAGE
from ep_runtime.bench.confidence import least_rounds
from ep_runtime.bench.expected import Rates
from ep_runtime.bench.options import SWEPT
from ep_runtime.bench.results import PASSED, pooled
from ep_runtime.bench.statistics import OPERATIONS
from ep_runtime.bench.table import (
    NOBODY_SLOW,
    against_baseline,
    microseconds,
    rate,
    reference_note,
)
from ep_runtime.bench.waits import TIMED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TITLES = {"dispatch": "Dispatch", "combine": "Combine", "pair": "Dispatch + combine"}
_SHORT_TITLES = {**_TITLES, "pair": "Both"}
_EXPLAINED = {
    "dispatch": "tokens to their experts",
    "combine": "expert outputs back, weighted and summed",
    "pair": "both, one right after the other",
}
_KINDS_EXPLAINED = {
    kinds.KERNEL: "what the GPU needs",
    kinds.BACK_TO_BACK: "for a program that goes on calling",
    kinds.END_TO_END: "for a program that waits for the result",
    kinds.HOOK: "in two phases, between which the caller may compute",
    kinds.ALL_TO_ALL: "the same tokens without this runtime: BF16 rows, counts known beforehand",
}
# Above this many rows a table shows the slowest ones and folds the rest away.
_MAX_SHOWN_RANKS = 64
_MAX_SHOWN_HOSTS = 24
_SLOWEST_SHOWN = 16

# Above this many ranks a cell is less than a pixel of a phone.
_MOST_RANKS_AT_ONCE = 192

_WIDE_IN = 10.4
_NARROW_IN = 4.4


def byte_size(value: float) -> str:
    """Format a size in decimal units, as the rates beside it are."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= factor:
            return f"{value / factor:,.2f} {unit}"
    return f"{value:,.0f} B"


def render(report: Mapping[str, Any], rates: Rates | None = None) -> str:
    """Render a loaded report as HTML text, with what ``rates`` of the wires let expect.

    Raises ``ReportError`` when matplotlib is missing.
    """
    rates = rates or Rates()
    canvas.require("--html")
    environment = Environment(
        loader=PackageLoader("ep_runtime.bench"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["us"] = microseconds
    environment.filters["byte_size"] = byte_size
    environment.filters["rate"] = rate
    environment.filters["against_baseline"] = against_baseline
    passed = report["correctness"] == PASSED
    return environment.get_template("report.html.j2").render(
        report=report,
        passed=passed,
        failure=report["correctness"].removeprefix("failed: "),
        reference_note=reference_note(report),
        nobody_slow=NOBODY_SLOW,
        operations=OPERATIONS,
        titles=_TITLES,
        short=_SHORT_TITLES,
        explained=_EXPLAINED,
        **(_figures(report, rates) if passed else {}),
    )


def _figures(report: Mapping[str, Any], rates: Rates) -> dict[str, Any]:
    """Everything on the page that only a passed run has."""
    ranks = report["per_rank"]
    shown_ranks, folded_ranks = _fold(ranks, _MAX_SHOWN_RANKS)
    shown_hosts, folded_hosts = _fold(_host_rows(report), _MAX_SHOWN_HOSTS)
    return {
        "distributions": {
            name: _svg(
                plots.distribution(ON_PAGE, pooled(ranks, name), report[name]),
                f"distribution-{name}",
            )
            for name in OPERATIONS
        },
        "wide": _svg(plots.by_rank(ON_PAGE, report, "pair", _WIDE_IN), "by-rank-wide"),
        "narrow": _svg(plots.by_rank(ON_PAGE, report, "pair", _NARROW_IN), "by-rank-narrow"),
        "expected": _expected(report, rates),
        "least_rounds": least_rounds(),
        "kinds": kinds.rows(report),
        "kinds_explained": _KINDS_EXPLAINED,
        "curves": {
            axis: _svg(curves.curve(ON_PAGE, report, axis, rates), f"sweep-{axis}")
            for axis in curves.swept_axes(report)
        },
        "axis_names": curves.AXIS_NAMES,
        "swept": SWEPT,
        "heat_maps": {name: _heat_maps(report, name) for name in TIMED if report["ranks"] > 1},
        "slow": results.blamed_ranks(report),
        "shown_ranks": shown_ranks,
        "folded_ranks": folded_ranks,
        "shown_hosts": shown_hosts,
        "folded_hosts": folded_hosts,
    }


def _heat_maps(report: Mapping[str, Any], operation: str) -> list[tuple[str, str, Markup]]:
    """Give (button, class, picture) of each way to look at the waits; first what is shown first."""
    full = _svg(plots.heat_map(ON_PAGE, report, operation), f"waits-{operation}")
    if report["ranks"] <= _MOST_RANKS_AT_ONCE:
        return [("1×", "by1", full), ("2×", "by2", full), ("4×", "by4", full)]
    figure = plots.heat_map(ON_PAGE, report, operation, by_host=True)
    hosts = _svg(figure, f"waits-{operation}-by-host")
    return [("hosts", "by1", hosts), ("ranks 4×", "by4", full), ("ranks 8×", "by8", full)]


def _svg(figure: Figure, salt: str) -> Markup:
    return Markup(canvas.svg(figure, salt))


def _expected(report: Mapping[str, Any], rates: Rates) -> dict[str, Any]:
    """Ask the model and the wire about the main figures, and why where they say nothing."""
    shape = report["parameters"]
    return {
        "rates": rates,
        "model": expected.model_us(report, shape, rates),
        "wire": {name: expected.wire_us(report, report[name], rates) for name in OPERATIONS},
        "no_wire": expected.no_wire(report),
        "no_model": expected.no_model(report),
    }


_Rows = Sequence[Mapping[str, Any]]


def _fold(rows: _Rows, limit: int) -> tuple[_Rows, _Rows]:
    """Split rows into those shown at once and those behind a fold."""
    if len(rows) <= limit:
        return rows, []
    slowest_first = sorted(rows, key=lambda row: row["pair"]["p99_us"], reverse=True)
    return slowest_first[:_SLOWEST_SHOWN], rows


def _host_rows(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Percentiles over the ranks of each host, and which of those ranks stand out."""
    slow = results.blamed_ranks(report)
    rows = []
    for host in report["hosts"]:
        members = [e for e in report["per_rank"] if e["rank"] in set(host["ranks"])]
        figures = {}
        for name in OPERATIONS:
            p50, p99 = np.percentile(pooled(members, name), [50, 99])
            figures[name] = {"p50_us": float(p50), "p99_us": float(p99)}
        rows.append(
            {
                "name": host["name"],
                "ranks": _ranges(sorted(host["ranks"])),
                "slow": _ranges(sorted(slow & set(host["ranks"]))),
                **figures,
            }
        )
    return rows


def _ranges(ranks: Sequence[int]) -> str:
    """Write sorted numbers as ranges: 0-3, 8."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ", ".join(f"{a}" if a == b else f"{a}\N{EN DASH}{b}" for a, b in parts)
