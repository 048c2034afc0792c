"""A report as one self-contained HTML page: no script, no network, light and dark and print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ep_runtime.bench import plots, results
from ep_runtime.bench.results import PASSED
from ep_runtime.bench.statistics import OPERATIONS
from ep_runtime.bench.table import (
    NOBODY_SLOW,
    against_baseline,
    microseconds,
    rate,
    reference_note,
)
from ep_runtime.bench.waits import TIMED

_TITLES = {"dispatch": "Dispatch", "combine": "Combine", "pair": "Dispatch + combine"}
_SHORT_TITLES = {**_TITLES, "pair": "Both"}
_EXPLAINED = {
    "dispatch": "tokens to their experts",
    "combine": "expert outputs back, weighted and summed",
    "pair": "both, one right after the other",
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


def render(report: Mapping[str, Any]) -> str:
    """Render a loaded report as HTML text.

    Raises ``ReportError`` when matplotlib is missing.
    """
    plots.require()
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
        **(_figures(report) if passed else {}),
    )


def _figures(report: Mapping[str, Any]) -> dict[str, Any]:
    """Everything on the page that only a passed run has."""
    ranks = report["per_rank"]
    shown_ranks, folded_ranks = _fold(ranks, _MAX_SHOWN_RANKS)
    shown_hosts, folded_hosts = _fold(_host_rows(report), _MAX_SHOWN_HOSTS)
    return {
        "distributions": {
            name: Markup(plots.distribution(_pooled(ranks, name), report[name], name))
            for name in OPERATIONS
        },
        "wide": Markup(plots.by_rank(report, "pair", _WIDE_IN)),
        "narrow": Markup(plots.by_rank(report, "pair", _NARROW_IN)),
        "heat_maps": {name: _heat_maps(report, name) for name in TIMED if report["ranks"] > 1},
        "slow": results.blamed_ranks(report),
        "shown_ranks": shown_ranks,
        "folded_ranks": folded_ranks,
        "shown_hosts": shown_hosts,
        "folded_hosts": folded_hosts,
    }


def _heat_maps(report: Mapping[str, Any], operation: str) -> list[tuple[str, str, Markup]]:
    """Give (button, class, picture) of each way to look at the waits; first what is shown first."""
    full = Markup(plots.heat_map(report, operation))
    if report["ranks"] <= _MOST_RANKS_AT_ONCE:
        return [("1×", "by1", full), ("2×", "by2", full), ("4×", "by4", full)]
    hosts = Markup(plots.heat_map(report, operation, by_host=True))
    return [("hosts", "by1", hosts), ("ranks 4×", "by4", full), ("ranks 8×", "by8", full)]


_Rows = Sequence[Mapping[str, Any]]


def _fold(rows: _Rows, limit: int) -> tuple[_Rows, _Rows]:
    """Split rows into those shown at once and those behind a fold."""
    if len(rows) <= limit:
        return rows, []
    slowest_first = sorted(rows, key=lambda row: row["pair"]["p99_us"], reverse=True)
    return slowest_first[:_SLOWEST_SHOWN], rows


def _pooled(ranks: Sequence[Mapping[str, Any]], operation: str) -> list[float]:
    return [value for entry in ranks for value in entry["samples"][operation]]


def _host_rows(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Percentiles over the ranks of each host, and which of those ranks stand out."""
    slow = results.blamed_ranks(report)
    rows = []
    for host in report["hosts"]:
        members = [e for e in report["per_rank"] if e["rank"] in set(host["ranks"])]
        figures = {}
        for name in OPERATIONS:
            p50, p99 = np.percentile(_pooled(members, name), [50, 99])
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
