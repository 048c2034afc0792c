"""From a rule's fixture to the findings it gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor import diagnose
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host import facts
from hosts import Tree

if TYPE_CHECKING:
    from pathlib import Path

    from cases.changes import Case, Change


def host_findings(case: Case, change: Change, path: Path) -> list[dict]:
    tree = Tree(case.layout)
    change(tree)
    return diagnose.diagnose(facts.gather(str(tree.write(path))), tree.intent)


def fleet_findings(case: Case, change: Change, path: Path) -> list[dict]:
    fleet, intents = {}, {}
    for name in ("gpu1", "gpu2", "gpu3"):
        tree = Tree(case.layout)
        if name == "gpu2":
            change(tree)
        fleet[name] = facts.gather(str(tree.write(path / name)))
        intents[name] = tree.intent
    return diagnose.diagnose_fleet(fleet, intents)
