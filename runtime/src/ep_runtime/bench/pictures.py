"""The report's pictures as PNG files, for slides and tickets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ep_runtime.bench import canvas, curves, plots
from ep_runtime.bench.canvas import ON_WHITE
from ep_runtime.bench.results import PASSED, pooled, write_bytes
from ep_runtime.bench.statistics import OPERATIONS
from ep_runtime.bench.waits import TIMED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ep_runtime.bench.expected import Rates

_WIDE_IN = 10.4
# Above this many ranks a picture shows hosts: ranks would be less than a pixel.
_MOST_RANKS = 512


def write(folder: Path, report: Mapping[str, Any], rates: Rates) -> list[Path]:
    """Write all pictures of a loaded report into ``folder``; none of a run that was not timed.

    Raises ``ReportError`` when matplotlib is missing or the folder can't be written to.
    """
    canvas.require("--png")
    if report["correctness"] != PASSED:
        return []
    paths = []
    for name, figure in _figures(report, rates):
        path = folder / f"{name}.png"
        write_bytes(path, canvas.png(figure))
        paths.append(path)
    return paths


def _figures(report: Mapping[str, Any], rates: Rates) -> Iterator[tuple[str, Figure]]:
    ranks = report["per_rank"]
    for name in OPERATIONS:
        yield (
            f"times-{name}",
            plots.distribution(ON_WHITE, pooled(ranks, name), report[name]),
        )
    yield "times-by-rank", plots.by_rank(ON_WHITE, report, "pair", _WIDE_IN)
    if report["ranks"] > 1:
        by_host = report["ranks"] > _MOST_RANKS
        for name in TIMED:
            yield f"waits-{name}", plots.heat_map(ON_WHITE, report, name, by_host=by_host)
    for axis in curves.swept_axes(report):
        yield f"sweep-{axis.replace('_', '-')}", curves.curve(ON_WHITE, report, axis, rates)
