"""Writes docs/diagnose/ from the rules and their fixtures; `--check` fails when it is stale."""

from __future__ import annotations

import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "diagnose"
# The fixtures show what a finding looks like. Their conftest makes the collection importable, so it
# comes first.
sys.path[:0] = [str(ROOT / "tests/unit"), str(ROOT / "tests/unit/doctor")]
import_module("conftest")
_DOCTOR = "ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor"
cases, findings = import_module("cases"), import_module("findings")
logs, message = import_module(_DOCTOR + ".logs"), import_module(_DOCTOR + ".logs.message")
diagnose, model = import_module(_DOCTOR + ".diagnose"), import_module(_DOCTOR + ".model")

HEAD = """\
# What diagnose can find

`ep-doctor`, `playbooks/preflight.yml` and `playbooks/verify.yml` report findings with the
identities below. Errors keep a run from working, or from working as intended; warnings cost speed
or are about to become errors. "Mended by" names the role that mends the fault in a rollout; a
rollout stops before it changes anything only for errors that no role mends.

These pages are written by `scripts/diagnose_pages.py` from the rules in
`runtime/src/ep_runtime/doctor/rules/` and their fixtures in `tests/unit/doctor/cases/`. Messages of
logs have [a page of their own](logs.md).
"""

LOG_HEAD = """\
# Messages of logs

`ep-doctor explain FILE` looks for these messages of NVSHMEM, NCCL, DeepEP, vLLM, SGLang, the driver
and the kernel, in any log. `%d` and `%s` stand for numbers and names. This page is written by
`scripts/diagnose_pages.py`.
"""


def examples() -> dict[str, dict[str, Any]]:
    """Return the finding that each rule's fixture gives."""
    found = {}
    for case in (*cases.CASES, *cases.FLEET_CASES):
        run = findings.host_findings if case in cases.CASES else findings.fleet_findings
        with tempfile.TemporaryDirectory() as folder:
            given = run(case, case.fires, Path(folder))
        found[case.rule] = next(item for item in given if item["id"] == case.rule)
    return found


def page(rule: Any, example: dict[str, Any]) -> str:
    """Return the page of one rule."""
    mended = f"role [{rule.role}](../../roles/{rule.role}/README.md)" if rule.role else "by hand"
    lines = [
        f"# {rule.id}: {rule.title}",
        "",
        f"Severity: {rule.severity}. Mended: {mended}.",
        "",
        "## What it means",
        "",
        rule.consequence,
        "",
        "## How it is seen",
        "",
        rule.explanation,
        "",
        "## What fixes it",
        "",
        example["fix"],
        "",
        "## An example",
        "",
        "| where | seen | wanted |",
        "| --- | --- | --- |",
    ]
    for item in example["evidence"]:
        cells = (str(item[key] or "").replace("|", "\\|") for key in ("where", "seen", "wanted"))
        lines.append("| " + " | ".join(f"`{cell}`" if cell else "" for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def index() -> str:
    """Return the page that lists all rules."""
    parts = [HEAD]
    for subject in diagnose.subjects():
        parts.append(f"\n## {subject}\n\n| finding | severity | title | mended by |\n")
        parts.append("| --- | --- | --- | --- |\n")
        for rule in sorted(model.RULES.values()):
            if rule.subject == subject:
                cells = (
                    f"[{rule.id}]({rule.id}.md)",
                    rule.severity,
                    rule.title,
                    rule.role or "hand",
                )
                parts.append("| " + " | ".join(cells) + " |\n")
    return "".join(parts)


def log_page() -> str:
    """Return the page of the messages that `ep-doctor explain` knows."""
    parts = [LOG_HEAD]
    for module in logs.SUBJECTS:
        subject = module.__name__.rsplit(".", 1)[-1]
        parts.append(f"\n## {subject}\n")
        for item in message.MESSAGES.values():
            if item.subject != subject:
                continue
            texts = "\n".join(f"    {text}" for text in item.texts)
            parts.append(
                f"\n### {item.id}: {item.title}\n\nSeverity: {item.severity}.\n\n{texts}\n\n"
            )
            parts.append(f"{item.consequence} {item.fix}\n")
            if item.rules:
                links = ", ".join(f"[{name}]({name}.md)" for name in item.rules)
                parts.append(f"\nFindings of the host to look at: {links}.\n")
    return "".join(parts)


def pages() -> dict[str, str]:
    """Return name and content of every page."""
    found = examples()
    written = {f"{rule.id}.md": page(rule, found[rule.id]) for rule in model.RULES.values()}
    return {"README.md": index(), "logs.md": log_page(), **written}


def main() -> int:
    """Write the pages, or compare them."""
    wanted = pages()
    present = {path.name: path.read_text() for path in PAGES.glob("*.md")}
    if "--check" not in sys.argv[1:]:
        PAGES.mkdir(exist_ok=True)
        for name in set(present) - set(wanted):
            (PAGES / name).unlink()
        for name, content in wanted.items():
            (PAGES / name).write_text(content)
        return 0
    if present == wanted:
        return 0
    names = sorted(name for name in {*present, *wanted} if present.get(name) != wanted.get(name))
    print("docs/diagnose is out of date: run `python scripts/diagnose_pages.py`", file=sys.stderr)
    print("\n".join(names), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
