"""Writes docs/variables.md from the roles' argument specs; `--check` fails when it is stale."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "variables.md"
ROLES = (
    "nvidia_driver",
    "gdrcopy",
    "initramfs",
    "host_tuning",
    "reboot",
    "nvshmem",
    "ep_runtime",
    "ep_benchmark",
)

HEAD = """\
# Variables

Set them in the inventory or with `-e`. A value that cannot be right stops the run before anything
changes, with one sentence that names the variable. This page is written by `scripts/variables.py`
from the roles' `meta/argument_specs.yml`.

## Of the whole fleet

| variable | default | meaning |
| --- | --- | --- |
"""
# The playbooks' own variables have no argument specs: plugins/module_utils/inputs.py checks them.
FLEET = {
    "epfleet_hosts": ("ep_fleet", "The inventory pattern of the fleet (give it with `-e`)."),
    "epfleet_ibgda_mode": (
        "auto",
        "`gpu`: the GPU rings the NIC's doorbell, which needs driver options and a reboot. `cpu`: "
        "a CPU thread does, without a reboot. `off`: no IBGDA (one NVLink host). `auto`: chosen "
        "for each host; without an NVIDIA GPU the reference backend. A mode given by name acts on "
        "any host.",
    ),
    "epfleet_reboot_policy": (
        "when_needed",
        "`never`: fail when a reboot is needed. `when_needed`: reboot the hosts whose loaded "
        "driver lacks the options. `always`: reboot each host once after a change, also where the "
        "effect cannot be verified live.",
    ),
    "epfleet_serial": ('[1, "25%"]', "How many hosts reboot at a time: first one, then quarters."),
    "epfleet_failure_budget": (
        "0",
        "How many hosts may fail or vanish before the rolling reboot stops.",
    ),
    "epfleet_mirror": (
        "",
        "A folder on the hosts, or a URL, with the bundle that `bundle.yml` makes: wheels and "
        "archives come from there and from nowhere else, packages from there and the host's own "
        "repositories.",
    ),
    "epfleet_accepted_findings": (
        "[]",
        "Findings that are no reason to stop a rollout or to fail `verify.yml`, such as "
        "`[EPD308]`; all are in [diagnose](diagnose/README.md).",
    ),
    "epfleet_findings_dir": (
        "",
        "Directory on the controller where `findings.json` and `findings.html` are written.",
    ),
    "epfleet_pip_args": (
        "[]",
        'Arguments for every call of pip on the hosts, such as `["--no-index", "--find-links", '
        '"/srv/wheels"]` where hosts have no network.',
    ),
    "epfleet_become": (
        "true",
        "Whether tasks become root. `false` serves the reference backend only.",
    ),
}


def plain(text: Any) -> str:
    """Return a description as one line of Markdown, its C() and V() markup as code."""
    line = " ".join(text if isinstance(text, list) else [str(text)])
    line = re.sub(r"\b[CVO]\(([^)]*)\)", r"`\1`", " ".join(line.split()))
    return line.replace("|", "\\|")


def row(name: str, option: dict[str, Any]) -> str:
    """Return the table row of one variable."""
    kind = option.get("type", "str")
    if "choices" in option:
        kind = ", ".join(f"`{choice}`" for choice in option["choices"])
    default = f"`{json.dumps(option['default'])}`" if "default" in option else ""
    default = default.replace("|", "\\|")
    return f"| `{name}` | {kind} | {default} | {plain(option['description'])} |"


def page() -> str:
    """Return the whole page."""
    parts = [HEAD]
    parts += [f"| `{name}` | `{value}` | {text} |\n" for name, (value, text) in FLEET.items()]
    for role in ROLES:
        specs = yaml.safe_load((ROOT / "roles" / role / "meta/argument_specs.yml").read_text())
        main = specs["argument_specs"]["main"]
        parts.append(f"\n## Role {role}\n\n{plain(main['short_description'])}.\n\n")
        parts.append("| variable | type | default | meaning |\n| --- | --- | --- | --- |\n")
        parts += [row(name, option) + "\n" for name, option in main["options"].items()]
    return "".join(parts)


def main() -> int:
    """Write the page, or compare it."""
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page())
        return 0
    if PAGE.exists() and PAGE.read_text() == page():
        return 0
    print("docs/variables.md is out of date: run `python scripts/variables.py`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
