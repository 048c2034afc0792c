# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""From facts and intent to findings, for one host and for a fleet."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from . import rules
from .intent import resolve
from .model import ERROR, RULES, SEVERITIES, Evidence, Facts, Intent, finding

Finding = Dict[str, Any]


def diagnose(
    facts: Facts, intent: Optional[Intent] = None, host: str = "localhost"
) -> List[Finding]:
    """The findings of one host, errors first.

    A finding has id, severity, title, hosts, evidence (a list of where, seen and wanted),
    consequence, fix, and the role that mends it in a rollout (null for none). A host without an
    NVIDIA GPU has none: it runs the reference backend, which needs nothing of all this.
    """
    return diagnose_fleet({host: facts}, {host: intent or {}})


def diagnose_fleet(
    fleet: Dict[str, Facts], intents: Optional[Dict[str, Intent]] = None
) -> List[Finding]:
    """The findings of all hosts, one per rule and host, those of the fleet's rules included.

    Raises ValueError for an intent with an unknown key.
    """
    intents = intents or {}
    resolved = {name: resolve(facts, intents.get(name) or {}) for name, facts in fleet.items()}
    concerned = {name: facts for name, facts in fleet.items() if facts["nvidia"]["gpu_count"]}
    found: List[Finding] = []
    for rule in RULES.values():
        if rule.check is not None:
            for name, facts in concerned.items():
                _add(found, rule, rule.check(facts, resolved[name]), name)
        elif rule.fleet_check is not None and len(concerned) > 1:
            first = resolved[next(iter(concerned))]
            for name, evidence in rule.fleet_check(concerned, first).items():
                _add(found, rule, evidence, name)
    found.sort(key=lambda item: (SEVERITIES.index(item["severity"]), item["id"]))
    return found


def _add(found: List[Finding], rule: Any, evidence: List[Evidence], host: str) -> None:
    if evidence:
        found.append(finding(rule, evidence, [host]))


def blocking(findings: List[Finding]) -> List[Finding]:
    """Errors that a rollout does not mend itself, and so must not begin with."""
    return [item for item in findings if item["severity"] == ERROR and item["role"] is None]


def subjects() -> List[str]:
    """Names of the subjects that rules are kept by."""
    return [module.__name__.rsplit(".", 1)[-1] for module in rules.SUBJECTS]
