"""A report for other programs: Markdown for tickets, JUnit for CI, Prometheus for monitoring."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ep_runtime.bench import kinds
from ep_runtime.bench.baseline import SLOWER
from ep_runtime.bench.findings import sentence
from ep_runtime.bench.options import SWEPT
from ep_runtime.bench.results import PASSED
from ep_runtime.bench.statistics import OPERATIONS
from ep_runtime.bench.table import (
    NOBODY_SLOW,
    against_baseline,
    medians,
    microseconds,
    p99_sentence,
    rate,
    reference_note,
)

_QUANTILES = {"0.5": "p50_us", "0.95": "p95_us", "0.99": "p99_us"}

Report = Mapping[str, Any]


def _setting(report: Report) -> str:
    p = report["parameters"]
    return (
        f"{report['ranks']} ranks on {len(report['hosts'])} hosts, {report['device']}, backend "
        f"{report['backend']} over {report['transport']}; {p['num_tokens']} tokens, hidden "
        f"{p['hidden']}, {p['num_experts']} experts, top-{p['num_topk']}, routing {p['routing']}, "
        f"dispatch {p['dtype']}, combine {p['combine_dtype']}"
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _kinds(report: Report) -> list[str]:
    lines = ["| kind of time | dispatch p50, us | combine | both |", "|---|---|---|---|"]
    for row in kinds.rows(report):
        cells = [f"not measured: {_cell(row.reason)}", "", ""] if row.reason else medians(row)
        lines.append(f"| {row.title} | {' | '.join(cells)} |")
    return lines


def _sweep(report: Report) -> list[str]:
    lines = [
        "| tokens | hidden | experts | top-k | dispatch p50, us | combine | both |",
        "|---|---|---|---|---|---|---|",
    ]
    for point in report["sweep"]:
        shape = " | ".join(str(point[name]) for name in SWEPT)
        times = " | ".join(microseconds(point[name]["p50_us"]) for name in OPERATIONS)
        lines.append(f"| {shape} | {times} |")
    return lines


def markdown(report: Report) -> str:
    """Write what belongs into a ticket: verdict, who is to blame, figures, versions."""
    lines = [
        f"# Expert-parallel benchmark: results {report['correctness']}",
        "",
        _setting(report),
        "",
    ]
    if report["correctness"] == PASSED:
        for culprit in report["culprits"]:
            lines.append(f"- **{culprit['what']}** {culprit['evidence']} {culprit['advice']}")
            lines += [f"  - {_cell(sentence(item))}" for item in culprit.get("findings", [])]
        if not report["culprits"]:
            lines.append(NOBODY_SLOW)
        lines += [
            "",
            "| operation | p50, us | p95 | p99 | logical GB/s | physical |",
            "|---|---|---|---|---|---|",
        ]
        for name in OPERATIONS:
            figures = report[name]
            times = " | ".join(microseconds(figures[key]) for key in _QUANTILES.values())
            rates = f"{rate(figures['logical_gbps'])} | {rate(figures['physical_gbps'])}"
            lines.append(f"| {name} | {times} | {rates} |")
        lines += ["", p99_sentence(report)]
        if report["parameters"]["full"]:
            lines += ["", *_kinds(report)]
        if report["sweep"]:
            lines += ["", *_sweep(report)]
        for name, change in report.get("baseline", {}).items():
            lines.append(f"\n{name} {against_baseline(change)}")
    note = reference_note(report)
    versions = ", ".join(f"{name} {_cell(value)}" for name, value in report["versions"].items())
    lines += [
        "",
        *([note, ""] if note else []),
        f"Run {report['run_id']}, {report['created']}; {versions}",
    ]
    return "\n".join(lines) + "\n"


def junit(report: Report) -> str:
    """Write test cases: right results, nobody to blame, and no operation slower than before."""
    suite = ET.Element("testsuite", name="ep-bench", timestamp=report["created"])
    failures = 0

    def case(name: str, failure: str, seconds: float = 0.0) -> None:
        nonlocal failures
        element = ET.SubElement(
            suite, "testcase", classname="ep-bench", name=name, time=f"{seconds:.9f}"
        )
        if failure:
            failures += 1
            ET.SubElement(element, "failure", message=failure).text = failure

    passed = report["correctness"] == PASSED
    case("results are right", "" if passed else report["correctness"])
    if passed:
        blamed = [f"{item['what']} {item['evidence']}" for item in report["culprits"]]
        case("nobody makes the others wait", "\n".join(blamed))
        for name in OPERATIONS:
            change = report.get("baseline", {}).get(name)
            slower = change is not None and change["verdict"] == SLOWER
            seconds = report[name]["p50_us"] / 1e6
            case(
                f"{name} is as fast as before",
                f"{name} {against_baseline(change)}" if slower else "",
                seconds,
            )
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(failures))
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _labels(**labels: str) -> str:
    escaped = (
        (name, value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"'))
        for name, value in labels.items()
    )
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped) + "}"


def prometheus(report: Report) -> str:
    """Write gauges for node_exporter's textfile collector; times in seconds, as is usual there."""
    passed = report["correctness"] == PASSED
    ended = datetime.fromisoformat(report["created"]).timestamp()
    gauges: list[tuple[str, str, list[tuple[str, float]]]] = [
        ("correct", "Whether all results were right.", [("", float(passed))]),
        ("ended_timestamp_seconds", "When the run ended.", [("", ended)]),
        ("ranks", "Ranks of the run.", [("", float(report["ranks"]))]),
    ]
    if passed:
        times = [
            (_labels(operation=name, quantile=quantile), report[name][key] / 1e6)
            for name in OPERATIONS
            for quantile, key in _QUANTILES.items()
        ]
        gauges.append(("latency_seconds", "Time of a call over all ranks.", times))
        blamed = [
            (
                _labels(
                    kind=item["kind"],
                    host=",".join(item["hosts"]),
                    ranks=",".join(str(rank) for rank in item["ranks"]),
                    peers=",".join(str(rank) for rank in item["peers"]),
                ),
                max(item["excess_us"].values()) / 1e6,
            )
            for item in report["culprits"]
        ]
        gauges.append(("culprit_excess_seconds", "What others wait longer than usual.", blamed))
    lines = []
    for name, explained, values in gauges:
        lines += [f"# HELP ep_bench_{name} {explained}", f"# TYPE ep_bench_{name} gauge"]
        lines += [f"ep_bench_{name}{labels} {value!r}" for labels, value in values]
    return "\n".join(lines) + "\n"
