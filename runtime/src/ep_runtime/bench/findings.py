"""What is known to be wrong with a host, beside the verdict that names it.

The findings are those of ``ep-doctor`` or of the collection's ``diagnose``, as they write them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ep_runtime.bench.results import ReportError, read_json
from ep_runtime.doctor.model import ERROR, WARNING

_KEPT = ("id", "severity", "title", "hosts", "fix")
_TOLD = (ERROR, WARNING)


def load(path: Path) -> list[dict[str, Any]]:
    """Read a list of findings.

    Raises ``ReportError`` with one sentence when the file is missing or holds something else.
    """
    found: list[dict[str, Any]] = read_json(path)
    if not isinstance(found, list) or not all(
        isinstance(item, dict) and {*_KEPT, "evidence"} <= set(item) for item in found
    ):
        raise ReportError(f"{path} holds no findings as ep-doctor --format json writes them.")
    return found


def attach(report: dict[str, Any], findings: list[dict[str, Any]]) -> None:
    """Give each culprit of ``report`` the errors and warnings of its hosts, errors first."""
    for culprit in report.get("culprits", []):
        concerned = [
            item
            for severity in _TOLD
            for item in findings
            if item["severity"] == severity and set(item["hosts"]) & set(culprit["hosts"])
        ]
        culprit["findings"] = [
            {**{name: item[name] for name in _KEPT}, "evidence": _evidence(item["evidence"])}
            for item in concerned
        ]


def sentence(finding: dict[str, Any]) -> str:
    """Say a finding in one line, for tables and tickets."""
    return f"[{finding['id']}] {finding['title']}. {finding['evidence']} {finding['fix']}".strip()


def _evidence(evidence: list[dict[str, str]]) -> str:
    return "; ".join(
        f"{item['where']}: {item['seen']}"
        + (f", wanted {item['wanted']}" if item.get("wanted") else "")
        for item in evidence
    ) + ("." if evidence else "")
