"""A report as a table on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ep_runtime.bench.findings import sentence
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
    return f"{gbps:,.2f}" if gbps >= 1 else f"{gbps:.2g}"


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
    for heading in ("p50", "p95", "p99", "min", "max", "GB/s"):
        table.add_column(heading, justify="right")
    for name in OPERATIONS:
        figures = report[name]
        times = (microseconds(figures[f"{key}_us"]) for key in ("p50", "p95", "p99", "min", "max"))
        label = "both" if name == "pair" else name
        table.add_row(label, *times, rate(figures["logical_gbps"]))
    console.print(table)
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
