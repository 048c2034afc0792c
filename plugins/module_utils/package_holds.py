# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Packages that someone keeps at their versions: they have a reason, so none is changed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Dict, List, Tuple

from ansible_collections.epfleet.expert_parallel.plugins.module_utils.packages import (
    Manager,
    PackageError,
    RunCommand,
    exact,
)

if TYPE_CHECKING:
    from ansible_collections.epfleet.expert_parallel.plugins.module_utils.record import Record

# NAME-EPOCH:VERSION-RELEASE.*, as dnf 4 lists a lock; dnf 5 has a line for the name.
_DNF_LOCK = re.compile(r"^(\S+)-(?:\d+:)?[^-\s]+-[^-\s]+$")
_DNF5_LOCK = re.compile(r"^Package name: (\S+)$")
# apt-get -s: Inst NAME [OLD] (NEW ORIGIN), without OLD for a package to come.
_APT_INSTALL = re.compile(r"^Inst (\S+) \[([^\]]+)\] \((\S+)")
_REMOVED = "removed"
_APT_REMOVAL = re.compile(r"^Remv (\S+) \[([^\]]+)\]")


def held(tools: Manager, run: RunCommand) -> List[str]:
    """Names of the packages that are held; none where the manager can't tell."""
    code, output, _errors = run(tools.held)
    if code != 0:
        return []
    if tools.held[0] == "apt-mark":
        return output.split()
    names = []
    for line in output.splitlines():
        if tools.held[0] == "zypper":
            cells = [cell.strip() for cell in line.split("|")]
            if len(cells) > 2 and cells[0].isdigit():
                names.append(cells[1])
        else:
            match = _DNF5_LOCK.match(line) or _DNF_LOCK.match(line)
            if match:
                names.append(match.group(1))
    return names


def held_by_others(tools: Manager, record: Record, run: RunCommand) -> List[str]:
    """Those of ``held`` that no role of ours holds."""
    ours = {name for entry in record.section("packages").values() for name in entry.get("held", [])}
    return [name for name in held(tools, run) if name not in ours]


def refuse_installation(
    tools: Manager,
    record: Record,
    wanted: List[str],
    have: Dict[str, str],
    run: RunCommand,
    simulate: bool,
) -> None:
    """Raise PackageError when installing ``wanted`` would change what someone else holds.

    ``simulate`` asks the package manager what would change with them, where it can tell.
    """
    locked = held_by_others(tools, record, run)
    if not locked:
        return
    changes = {}
    for item in wanted:
        name, _equals, version = item.partition("=")
        if name in have:
            changes[name] = (have[name], version or "another version")
    if simulate and tools.simulate_install:
        names = [exact(tools, item, run).replace("=", tools.pin, 1) for item in wanted]
        _code, output, _errors = run([*tools.simulate_install, *names])
        changes.update(_simulated(output))
    _refuse(tools, {name: changes[name] for name in locked if name in changes})


def refuse_removal(
    tools: Manager,
    record: Record,
    plan: Dict[str, List[str]],
    have: Dict[str, str],
    run: RunCommand,
) -> None:
    """Raise PackageError when a plan of ``packages.removal`` would change what others hold."""
    coming = dict.fromkeys(plan["remove"], _REMOVED)
    for item in plan["restore"]:
        name, _equals, version = item.partition("=")
        coming[name] = version
    locked = held_by_others(tools, record, run) if coming else []
    _refuse(
        tools,
        {name: (have.get(name, "none"), coming[name]) for name in locked if name in coming},
    )


def _simulated(output: str) -> Dict[str, Tuple[str, str]]:
    changes = {}
    for line in output.splitlines():
        install, removal = _APT_INSTALL.match(line), _APT_REMOVAL.match(line)
        if install:
            changes[install.group(1)] = (install.group(2), install.group(3))
        elif removal:
            changes[removal.group(1)] = (removal.group(2), _REMOVED)
    return changes


def _refuse(tools: Manager, changes: Dict[str, Tuple[str, str]]) -> None:
    if not changes:
        return
    told = "; ".join(
        f"{name} is held at {old} and would become {new}"
        for name, (old, new) in sorted(changes.items())
    )
    raise PackageError(
        f"{told} (`{' '.join(tools.held)}` lists it). Nothing was changed. Release it with"
        f" `{' '.join(tools.unhold)} {' '.join(sorted(changes))}` if it may change, or ask for the"
        " version that is there."
    )
