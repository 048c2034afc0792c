"""A report as a table on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ep_runtime.bench import kinds
from ep_runtime.bench.confidence import least_rounds
from ep_runtime.bench.findings import sentence
from ep_runtime.bench.options import SWEPT
from ep_runtime.bench.results import PASSED
from ep_runtime.bench.statistics import OPERATIONS

NOBODY_SLOW = "No host, rank or link stood out as slow."


def microseconds(value: float) -> str:
    """Format a time with as many digits as can matter."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def rate(gbps: float) -> str:
    """Format a rate, small ones with two significant digits."""
    if gbps >= 100:
        return f"{gbps:,.0f}"
    return f"{gbps:,.2f}" if gbps >= 1 else f"{gbps:.2g}"


def p99_sentence(report: Mapping[str, Any]) -> str:
    """Say how sure the p99 is, and whether the run was steady."""
    rounds, asked = report["rounds"], report["parameters"]["p99_within"]
    percent = rounds["p99_percent"]
    told = (
        f"The p99 of the slowest rank is not bounded by {rounds['timed']} rounds; that takes "
        f"{least_rounds()} or more."
        if percent is None
        else f"The p99 of the slowest rank is known within {percent:.2g} % "
        f"({rounds['timed']} rounds)."
    )
    if asked and (percent is None or percent > asked):
        told += f" Asked for were {asked:g} %."
    if rounds["steady"] is False:
        told += f" Rounds were still not steady after {rounds['warmup']} untimed ones."
    return told


def medians(row: kinds.Row) -> list[str]:
    """Format the medians of all operations, "" for those that the kind has not."""
    return [
        microseconds(row.figures[name]["p50_us"]) if name in row.figures else ""
        for name in OPERATIONS
    ]


def reference_note(report: Mapping[str, Any]) -> str:
    """Say what figures of the fallback are worth; "" for any other backend."""
    if report["backend"] != "reference":
        return ""
    where = "the CPU" if report["device"] == "cpu" else report["device"]
    return (
        f"These are figures of the reference backend, the fallback on torch operations, run on "
        f"{where}. They show that the whole road works, not how fast a GPU fleet is."
    )


def against_baseline(change: Mapping[str, Any]) -> str:
    """Say how an operation compares with the kept run."""
    return (
        f"{change['verdict']} against the baseline of {microseconds(change['baseline_us'])} us: "
        f"{change['ratio']:.3f} times ({change['low']:.3f} to {change['high']:.3f})"
    )


def _kinds(report: Mapping[str, Any]) -> Table:
    table = Table(title="All kinds of time, medians in microseconds")
    table.add_column("kind")
    for name in OPERATIONS:
        table.add_column("both" if name == "pair" else name, justify="right")
    table.add_column("not measured")
    for row in kinds.rows(report):
        table.add_row(row.title, *medians(row), escape(row.reason))
    return table


def _sweep(report: Mapping[str, Any]) -> Table:
    table = Table(title="Sweep, medians in microseconds")
    for heading in ("tokens", "hidden", "experts", "top-k", "dispatch", "combine", "both"):
        table.add_column(heading, justify="right")
    for point in report["sweep"]:
        shape = (str(point[name]) for name in SWEPT)
        table.add_row(*shape, *(microseconds(point[name]["p50_us"]) for name in OPERATIONS))
    return table


def show(report: Mapping[str, Any], console: Console | None = None) -> None:
    """Print verdict, setting and figures of ``report``."""
    console = console or Console()
    hosts = [host["name"] for host in report["hosts"]]
    shown = ", ".join(hosts) if len(hosts) <= 4 else f"{len(hosts)} hosts"
    plural = "" if report["ranks"] == 1 else "s"
    passed = report["correctness"] == PASSED
    colour = "green" if passed else "red"
    console.print(f"[bold {colour}]correctness: {escape(report['correctness'])}[/]")
    console.print(
        f"backend {report['backend']} over {report['transport']}, {report['device']}, "
        f"{report['ranks']} rank{plural} on {shown}",
        markup=False,
        highlight=False,
    )
    if not passed:
        return
    table = Table(title="Low-latency operations, all ranks, microseconds")
    table.add_column("operation")
    for heading in ("p50", "p95", "p99", "min", "max", "logical GB/s", "physical"):
        table.add_column(heading, justify="right")
    for name in OPERATIONS:
        figures = report[name]
        times = (microseconds(figures[f"{key}_us"]) for key in ("p50", "p95", "p99", "min", "max"))
        label = "both" if name == "pair" else name
        table.add_row(label, *times, rate(figures["logical_gbps"]), rate(figures["physical_gbps"]))
    console.print(table)
    console.print(p99_sentence(report), markup=False, highlight=False)
    if report["parameters"]["full"]:
        console.print(_kinds(report))
    if report["sweep"]:
        console.print(_sweep(report))
    if not report["culprits"]:
        console.print(NOBODY_SLOW)
    for culprit in report["culprits"]:
        console.print(f"[bold yellow]{escape(culprit['what'])}[/]")
        console.print(f"{culprit['evidence']} {culprit['advice']}", markup=False, highlight=False)
        for finding in culprit.get("findings", []):
            console.print(f"  {sentence(finding)}", markup=False, highlight=False)
    for name, change in report.get("baseline", {}).items():
        console.print(f"{name} {against_baseline(change)}", markup=False, highlight=False)
    note = reference_note(report)
    if note:
        console.print(note, style="yellow", markup=False, highlight=False)
