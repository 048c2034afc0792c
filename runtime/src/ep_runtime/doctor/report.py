# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Findings for people: grouped over hosts, as text of 80 columns."""

from __future__ import annotations

import json
import textwrap
from typing import Any, Dict, List

from .hostrange import compact
from .model import ERROR, INFO, WARNING

WIDTH = 80
_LABELS = {ERROR: "ERROR", WARNING: "WARNING", INFO: "INFO"}
_COLOURS = {ERROR: "31", WARNING: "33", INFO: "36"}
_MAX_EVIDENCE = 4
Finding = Dict[str, Any]


def grouped(findings: List[Finding]) -> List[Finding]:
    """One entry per id: all hosts, and the different evidence with the hosts it was seen on.

    Evidence of different hosts is one when it is equal; ``fix`` is that of the first host.
    """
    groups: Dict[str, Finding] = {}
    for item in findings:
        group = groups.setdefault(item["id"], {**item, "hosts": [], "evidence": []})
        group["hosts"] += item["hosts"]
        for evidence in item["evidence"]:
            known = next((e for e in group["evidence"] if _same(e, evidence)), None)
            if known is None:
                group["evidence"].append({**evidence, "hosts": [*item["hosts"]]})
            else:
                known["hosts"] += item["hosts"]
    return list(groups.values())


def _same(first: Dict[str, Any], second: Dict[str, Any]) -> bool:
    return all(first[key] == second[key] for key in ("where", "seen", "wanted"))


def summary(findings: List[Finding], hosts: int) -> str:
    """One line: how many findings of which severity, on how many hosts."""
    counts = dict.fromkeys(_LABELS, 0)
    concerned = set()
    for item in findings:
        concerned.update(item["hosts"])
    for item in grouped(findings):
        counts[item["severity"]] += 1
    if not findings:
        return f"No findings on {_plural(hosts, 'host')}."
    told = ", ".join(_plural(count, name) for name, count in counts.items() if count)
    if hosts < 2:
        return f"{told}."
    return f"{told} on {len(concerned)} of {_plural(hosts, 'host')}."


def _plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 or word == INFO else f"{count} {word}s"


def table(findings: List[Finding], hosts: int = 1, colour: bool = False) -> str:
    """The findings as text, at most 80 columns wide, ending with the summary.

    First one row a finding; then each with its evidence, what it means and what fixes it.
    """
    groups = grouped(findings)
    lines: List[str] = []
    many = hosts > 1
    for item in groups:
        label = _LABELS[item["severity"]]
        count = f"{len(item['hosts']):>4} hosts  " if many else ""
        row = f"{label:<8} {item['id']}  {count}"
        lines += _wrapped(item["title"], row, " " * len(row))
    if groups:
        lines.append("")
    for item in groups:
        lines += _details(item, many)
    lines.append(summary(findings, hosts))
    return "\n".join(_painted(line) if colour else line for line in lines) + "\n"


def _details(item: Finding, many: bool) -> List[str]:
    lines = _wrapped(item["title"], f"{_LABELS[item['severity']]} {item['id']}: ", "  ")
    if many:
        lines += _wrapped(compact(item["hosts"]), "  hosts   ", "          ")
    for evidence in item["evidence"][:_MAX_EVIDENCE]:
        seen = f"{evidence['where']}: {evidence['seen']}"
        if evidence["wanted"]:
            seen += f" (wanted: {evidence['wanted']})"
        if many and len(evidence["hosts"]) < len(item["hosts"]):
            seen += f" on {compact(evidence['hosts'])}"
        lines += _wrapped(seen, "  seen    ", "          ")
    more = len(item["evidence"]) - _MAX_EVIDENCE
    if more > 0:
        lines.append(f"          and {more} more like it")
    lines += _wrapped(item["consequence"], "  means   ", "          ")
    lines += _wrapped(item["fix"], "  fix     ", "          ")
    if item["rules"]:
        names = ", ".join(item["rules"])
        lines += _wrapped(
            f"run ep-doctor on the host; look for {names}", "  see     ", "          "
        )
    return [*lines, ""]


def _wrapped(text: str, first: str, following: str) -> List[str]:
    return textwrap.wrap(
        " ".join(_printable(text).split()),
        WIDTH,
        initial_indent=first,
        subsequent_indent=following,
        break_on_hyphens=False,
    ) or [first.rstrip()]


def _printable(text: str) -> str:
    """What files hold is shown, and must not steer the terminal."""
    return "".join(character if character.isprintable() else " " for character in text)


def _painted(line: str) -> str:
    for severity, label in _LABELS.items():
        if line.startswith(label + " "):
            return f"\033[{_COLOURS[severity]};1m{label}\033[0m{line[len(label) :]}"
    return line


def as_json(findings: List[Finding]) -> str:
    """The findings as a JSON list."""
    return json.dumps(findings, indent=2) + "\n"
