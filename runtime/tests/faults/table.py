"""The table of docs/reliability.md: one section a backend, between its two marks."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np
from reliability_page import markdown

if TYPE_CHECKING:
    from faults.judge import Result

_HEAD = (
    "fault",
    "where",
    "mode",
    "rounds",
    "survived",
    "time to error p50",
    "p99",
    "healthy ranks masked",
    "data wrong",
    "hung",
)


def _seconds(values: list[float], percentile: float) -> str:
    return f"{np.percentile(values, percentile):.2f} s" if values else "-"


def rows(results: list[Result]) -> list[tuple[str, ...]]:
    """A row for each fault, place and mode."""
    groups: dict[tuple[str, str, str], list[Result]] = defaultdict(list)
    for result in results:
        plan = result.plan
        where = f"{'within' if plan.within else 'before'} {plan.step}"
        groups[plan.fault, where, "shrink" if plan.shrink else "raise"].append(result)
    table = []
    for key, found in groups.items():
        waits = [wait for result in found for wait in result.waits_s]
        table.append(
            (
                *key,
                str(len(found)),
                str(sum(not result.problems for result in found)),
                _seconds(waits, 50),
                _seconds(waits, 99),
                str(sum(result.healthy_masked for result in found)),
                str(sum(result.wrong for result in found)),
                str(sum(result.hung for result in found)),
            )
        )
    return table


def section(results: list[Result], about: str) -> str:
    """The table in Markdown below a line ``about`` the run."""
    return markdown(about, _HEAD, rows(results))
