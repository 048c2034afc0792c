# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Findings as one self-contained HTML page: no script, no network, light and dark."""

from __future__ import annotations

import os
from typing import Any, Dict, List

from .hostrange import compact
from .model import SEVERITIES
from .report import grouped, summary

_TEMPLATES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates")


def render(findings: List[Dict[str, Any]], hosts: int, title: str) -> str:
    """The page as text; every value in it is escaped."""
    # Wherever a page is asked for, Ansible or the wheel brought Jinja2; a host's Python has none.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["compact"] = compact
    groups = grouped(findings)
    counts = {name: sum(1 for item in groups if item["severity"] == name) for name in SEVERITIES}
    return environment.get_template("findings.html.j2").render(
        findings=groups,
        hosts=hosts,
        title=title,
        counts=counts,
        summary=summary(findings, hosts),
    )
