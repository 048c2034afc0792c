# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Rules, and the findings they give.

A rule looks at the facts of one host and at what is intended there, and returns the evidence of its
failure, an empty list for none. What it means and what fixes it is said where the rule is declared.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional

ERROR, WARNING, INFO = "error", "warning", "info"
SEVERITIES = (ERROR, WARNING, INFO)


class Evidence(NamedTuple):
    """``where`` it was seen (a file and line, a program), what, and what it should be instead."""

    where: str
    seen: str
    wanted: Optional[str] = None


Facts = Dict[str, Any]
Intent = Dict[str, Any]
Check = Callable[[Facts, Intent], List[Evidence]]
FleetCheck = Callable[[Dict[str, Facts], Intent], Dict[str, List[Evidence]]]


class Rule(NamedTuple):
    """One rule. ``role`` names the role that mends the fault in a rollout; None: by hand.

    ``fix`` may refer to the first evidence as {where}, {seen} and {wanted}.
    """

    id: str
    severity: str
    title: str
    consequence: str
    fix: str
    role: Optional[str]
    subject: str
    explanation: str
    check: Optional[Check]
    fleet_check: Optional[FleetCheck]


RULES: Dict[str, Rule] = {}


def rule(
    identity: str,
    severity: str,
    title: str,
    consequence: str,
    fix: str,
    role: Optional[str] = None,
) -> Callable[[Check], Check]:
    """Register the function below as the check of rule ``identity``, for one host."""

    def register(check: Check) -> Check:
        _add(identity, severity, title, consequence, fix, role, check, None)
        return check

    return register


def fleet_rule(
    identity: str, severity: str, title: str, consequence: str, fix: str
) -> Callable[[FleetCheck], FleetCheck]:
    """Register a check over all hosts; it returns the evidence by host."""

    def register(check: FleetCheck) -> FleetCheck:
        _add(identity, severity, title, consequence, fix, None, None, check)
        return check

    return register


def _add(
    identity: str,
    severity: str,
    title: str,
    consequence: str,
    fix: str,
    role: Optional[str],
    check: Optional[Check],
    fleet_check: Optional[FleetCheck],
) -> None:
    if identity in RULES:
        raise ValueError(f"two rules are called {identity}")
    function: Any = check or fleet_check
    subject = function.__module__.rsplit(".", 1)[-1]
    explanation = "\n".join(line.strip() for line in (function.__doc__ or "").split("\n")).strip()
    RULES[identity] = Rule(
        identity,
        severity,
        title,
        consequence,
        fix,
        role,
        subject,
        explanation,
        check,
        fleet_check,
    )


def finding(found: Rule, evidence: List[Evidence], hosts: List[str]) -> Dict[str, Any]:
    """The finding as it stands in JSON."""
    first = {key: value or "" for key, value in evidence[0]._asdict().items()}
    return {
        "id": found.id,
        "severity": found.severity,
        "title": found.title,
        "hosts": hosts,
        "evidence": [dict(item._asdict()) for item in evidence],
        "consequence": found.consequence,
        "fix": found.fix.format(**first),
        "role": found.role,
        "rules": [],
    }
