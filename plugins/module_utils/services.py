# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Units that others bring: enabled and started, and put back to what they were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Tuple

if TYPE_CHECKING:
    from ansible_collections.epfleet.expert_parallel.plugins.module_utils.record import Record

RunCommand = Callable[[List[str]], Tuple[int, str, str]]
_SECTION = "services"
# What the manager goes on to say, until it is reloaded, once it has been asked about a running unit
# whose file was gone: a package that was removed and installed again. `is-enabled` reads the files.
_LOOKED_WHILE_GONE = "bad"


class ServiceError(Exception):
    """A unit that is not there, is masked, or does not start; says why and what to do."""


class State(NamedTuple):
    """``exists`` as a unit the manager can load; ``enabled`` in its own word, such as static."""

    exists: bool
    enabled: str
    active: bool


def state(unit: str, run: RunCommand) -> State:
    """Ask the service manager about one unit."""
    asked = ["systemctl", "show", "--property=LoadState,UnitFileState,ActiveState", unit]
    _code, output, _errors = run(asked)
    said = dict(line.partition("=")[::2] for line in output.splitlines())
    enabled = said.get("UnitFileState", "")
    if enabled == _LOOKED_WHILE_GONE:
        _code, output, _errors = run(["systemctl", "is-enabled", unit])
        enabled = output.strip()
    return State(
        said.get("LoadState") in ("loaded", "masked"),
        enabled,
        said.get("ActiveState") in ("active", "activating", "reloading"),
    )


def lacking(before: State, started: bool) -> List[str]:
    """What has to be done to the unit: ``enable``, ``start``.

    A unit without an [Install] section (static) is started by others and can't be enabled.
    """
    needed = ["enable"] if before.enabled in ("disabled", "enabled-runtime") else []
    return [*needed, "start"] if started and not before.active else needed


def put_in_force(record: Record, owner: str, unit: str, before: State, run: RunCommand) -> None:
    """Enable ``unit``, its first state kept under ``owner`` in the record."""
    first = {"owner": owner, "enabled": before.enabled != "disabled", "active": before.active}
    record.section(_SECTION).setdefault(unit, first)
    record.save()
    if "enable" in lacking(before, started=False):
        _must(["systemctl", "enable", unit], run)


def start(unit: str, run: RunCommand) -> None:
    """Start ``unit``; ServiceError has its last words when it does not come up."""
    code, _output, errors = run(["systemctl", "start", unit])
    if code == 0:
        return
    _code, journal, _errors = run(["journalctl", "-u", unit, "-n", "3", "-o", "cat", "--no-pager"])
    told = "; ".join(line.strip() for line in journal.splitlines() if line.strip())
    raise ServiceError(f"{unit} does not start: {told or errors.strip()}")


def owned(record: Record, owner: str) -> Dict[str, Dict[str, Any]]:
    """The first states of the units that ``owner`` put in force."""
    units = record.section(_SECTION).items()
    return {unit: first for unit, first in units if first["owner"] == owner}


def give_back(record: Record, owner: str, run: RunCommand) -> None:
    """Put the units of ``owner`` back to their first states; one that is gone needs nothing."""
    for unit, first in owned(record, owner).items():
        now = state(unit, run)
        if now.exists and now.active and not first["active"]:
            _must(["systemctl", "stop", unit], run)
        if now.exists and now.enabled == "enabled" and not first["enabled"]:
            _must(["systemctl", "disable", unit], run)
        record.section(_SECTION).pop(unit)
        record.save()


def _must(command: List[str], run: RunCommand) -> None:
    code, output, errors = run(command)
    if code != 0:
        raise ServiceError(f"`{' '.join(command)}` failed: {(errors or output).strip()}")
