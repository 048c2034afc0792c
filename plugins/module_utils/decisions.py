# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""What follows from a host's facts: its mode, its option file, whether it must reboot.

Every answer comes from state, never from what an earlier task changed, so a run that was killed
anywhere reaches the same end when it is started again.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional

from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host import (
    initramfs,
    modprobe,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.modprobe import (
    OPTIONS_FILE,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.driver_parts import (
    coming_driver,
)

PREFIX = "NVreg_"
DWORDS = PREFIX + "RegistryDwords"
_HEADER = "# Managed by the epfleet.expert_parallel collection; changes here are overwritten.\n"
# Registry entries of lines that were taken over: with the lines gone, only this remembers them.
_CARRIED = "# Carried over: "
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
_VALUE = re.compile(r"[A-Za-z0-9_.:=+-]*\Z")
_REFUSING_COMMANDS = ("true", "false")


def resolve_mode(facts: Dict[str, Any], requested: str, policy: str, hosts: int) -> str:
    """The mode a host runs in: ``gpu``, ``cpu``, ``off`` or ``reference``.

    auto takes ``reference`` without a GPU; ``off`` on a fleet of one host, which has no remote
    GPU to reach; ``cpu`` where a reboot is forbidden and the options are not live; else ``gpu``.
    """
    if requested != "auto":
        return requested
    if not facts["nvidia"]["gpu_count"]:
        return "reference"
    if hosts == 1:
        return "off"
    plan = driver_plan(facts, {"EnableStreamMemOPs": 1}, {"PeerMappingOverride": 1}, True)
    if policy == "never" and plan["live"] != "yes":
        return "cpu"
    return "gpu"


def driver_plan(
    facts: Dict[str, Any], options: Dict[str, Any], dwords: Dict[str, Any], take_over: bool
) -> Dict[str, Any]:
    """The option file for a host, whether it is there, and what stands in its way.

    ``live`` is ``yes``, ``no`` or ``unknown`` (the module is not loaded). ``planned`` is what
    ``reboot_need`` takes in check mode. ``claims`` are assignments of others that must go for ours
    to count. ``problems`` are sentences; with any of them the file must not be written.
    """
    problems = _bad_entries(options, "nvidia_driver_options")
    problems += _bad_entries(dwords, "nvidia_driver_registry_dwords")
    wanted = {PREFIX + name: _text(value) for name, value in options.items()}
    entries = {name: _text(value) for name, value in dwords.items()}
    if DWORDS in wanted:
        problems.append(
            "nvidia_driver_options must not name RegistryDwords; give its entries in"
            " nvidia_driver_registry_dwords."
        )
    config = facts["nvidia"]["modprobe"]
    module = config["module"]
    next_load = _next_load(facts)
    foreign = [item for item in next_load if item["source"] != OPTIONS_FILE]
    carried: Dict[str, str] = {}
    if entries and take_over:
        carried = _theirs(config["own"], foreign, entries)
    if entries:
        wanted[DWORDS] = _join({**entries, **carried})
    claims = []
    for item in foreign:
        if item["parameter"] in wanted and not _compatible(item, wanted[item["parameter"]]):
            if not take_over:
                problems.append(_conflict(item))
            elif _read_after_ours(item["source"]):
                claims.append({"parameter": item["parameter"], "source": item["source"]})
    for rule in config["rules"]:
        command = (rule["text"].split() or [""])[0].rsplit("/", 1)[-1]
        if rule["kind"] == "install" and command in _REFUSING_COMMANDS:
            problems.append(
                f"{rule['source']}:{rule['line']} (install {module} {rule['text']}) keeps the"
                " driver from loading; remove that line."
            )
    content = None
    if wanted:
        line = " ".join(f"{name}={_quoted(name, value)}" for name, value in wanted.items())
        note = f"{_CARRIED}{_join(carried)}\n" if carried else ""
        content = f"{_HEADER}{note}options {module} {line}\n"
    live = _live(wanted, facts["nvidia"]["params"])
    current = config["own"] == content
    reload = live == "no" if wanted else not current and facts["nvidia"]["module_loaded"]
    return {
        "path": OPTIONS_FILE,
        "content": content,
        "wanted": wanted,
        "current": current,
        "would_load": _satisfied(wanted, _effective(next_load)),
        "live": live,
        "planned": {"change": not current, "reload": reload, "options": wanted},
        "claims": claims,
        "problems": problems,
    }


def _next_load(facts: Dict[str, Any]) -> List[Dict[str, Any]]:
    """The assignments that a load after the next boot gets.

    /proc/cmdline is this boot's; what was taken out of the boot loader's configuration since is
    in the record of changes.
    """
    changes = facts["changes"] or {}
    gone = changes.get("command_line", [])
    if changes.get("boot_id") != facts["boot"]["boot_id"]:
        gone = []
    return [
        item
        for item in facts["nvidia"]["modprobe"]["assignments"]
        if item["source"] != modprobe.COMMAND_LINE or item["parameter"] not in gone
    ]


def _effective(assignments: List[Dict[str, Any]]) -> Dict[str, str]:
    return {item["parameter"]: item["value"] or "" for item in assignments}


def _theirs(
    own: Optional[str], foreign: List[Dict[str, Any]], entries: Dict[str, str]
) -> Dict[str, str]:
    """Registry entries that others set before us and we would otherwise drop."""
    theirs: Dict[str, str] = {}
    for line in (own or "").splitlines():
        if line.startswith(_CARRIED):
            theirs = modprobe.registry_dwords(line[len(_CARRIED) :])
    for item in foreign:
        if item["parameter"] == DWORDS:
            # The kernel takes the last assignment whole; earlier ones never had an effect.
            theirs = modprobe.registry_dwords(item["value"])
    return {key: value for key, value in theirs.items() if key not in entries}


def _compatible(item: Dict[str, Any], wanted: str) -> bool:
    """Whether someone else's assignment and ours can both stand."""
    parameter, value = item["parameter"], item["value"]
    if _read_after_ours(item["source"]):
        return modprobe.gives(parameter, wanted, value)
    # Read before ours: whatever it asks beyond what we set would be lost without a word.
    return modprobe.gives(parameter, value or "", wanted)


def _conflict(item: Dict[str, Any]) -> str:
    """What is wrong with someone else's assignment to a parameter that we set."""
    where = f"{item['source']}:{item['line']} sets {item['parameter']}={item['value']}"
    if _read_after_ours(item["source"]):
        return (
            f"{where}, which the kernel reads after {OPTIONS_FILE} and so puts in its place;"
            " remove it there, or set nvidia_driver_take_over to true to have it taken out"
            " (rollback puts it back)."
        )
    return (
        f"{where}, which {OPTIONS_FILE} would override; remove it there, or set"
        " nvidia_driver_take_over to true to let ours win (registry entries that ours lacks are"
        " carried over)."
    )


def _read_after_ours(source: str) -> bool:
    if source == modprobe.COMMAND_LINE:
        return True
    return source.rsplit("/", 1)[-1] > OPTIONS_FILE.rsplit("/", 1)[-1]


def reboot_need(
    facts: Dict[str, Any], mode: str, policy: str, planned: Optional[Dict[str, Any]] = None
) -> Dict[str, Any]:
    """Whether a host must reboot, and whether the policy has it rebooted now.

    ``needed``: the loaded module lacks what its next load would get, or is of another version than
    the one that is installed for the kernel that boots next. ``due``: needed and allowed,
    or policy ``always`` and no boot since the roles last changed what a boot reads. ``planned`` is
    what the roles would have changed, had they not run in check mode. Only mode ``gpu`` needs the
    options live; that removed ones are gone matters in every mode.
    """
    planned = planned or {"change": False, "reload": False}
    nvidia = facts["nvidia"]
    config, params = nvidia["modprobe"], nvidia["params"]
    load_values = _effective(_next_load(facts))
    ours = {i["parameter"] for i in config["assignments"] if i["source"] == OPTIONS_FILE}
    reasons = []
    for parameter in sorted(ours) if mode == "gpu" else ():
        name = parameter[len(PREFIX) :] if parameter.startswith(PREFIX) else parameter
        if params is None or name not in params:
            continue
        load = load_values[parameter]
        if not modprobe.same_value(parameter, params[name], load):
            reasons.append(
                f"{name} is {params[name] or 'empty'} in the loaded driver, {load} at its next load"
            )
    coming = coming_driver(facts)
    if nvidia["version"] and coming and coming != nvidia["version"]:
        reasons.append(f"the loaded driver is {nvidia['version']}, its next load is {coming}")
    changes = facts["changes"]
    this_boot = changes is None or changes.get("boot_id") == facts["boot"]["boot_id"]
    if not ours and changes is not None and this_boot and nvidia["module_loaded"]:
        reasons.append("the options were removed in this boot, the loaded driver still has them")
    if planned["reload"] and not reasons:
        reasons.append("the loaded driver would not have the options that this run writes")
    needed = bool(reasons)
    touched = planned["change"] or (this_boot and (bool(ours) or changes is not None))
    if policy == "always" and not needed and touched:
        reasons.append("the policy is always, and the options or an image changed in this boot")
    due = policy != "never" and bool(reasons)
    return {"needed": needed, "due": due, "reasons": reasons}


def unsigned_modules(facts: Dict[str, Any]) -> List[str]:
    """Paths of driver modules that this host's firmware would keep from loading."""
    if not facts["secure_boot"]:
        return []
    return sorted(
        module["path"]
        for modules in facts["modules"]["installed"].values()
        for module in modules.values()
        if module["signed"] is False
    )


def stale_images(facts: Dict[str, Any]) -> List[str]:
    """One sentence for each image whose options a boot would take although they are not right.

    The next boot's, that is; those of all kernels where nothing tells which one it takes.
    """
    release = facts["kernel"]["next"]["release"]
    return [
        f"kernel {item['kernel']}: {item['path']} ({item['evidence']})"
        for item in facts["initramfs"]
        if item["state"] == initramfs.STALE and release in (None, item["kernel"])
    ]


def _satisfied(wanted: Dict[str, str], given: Dict[str, str]) -> bool:
    return all(
        name in given and modprobe.gives(name, value, given[name]) for name, value in wanted.items()
    )


def _live(wanted: Dict[str, str], params: Optional[Dict[str, str]]) -> str:
    if params is None:
        return "unknown"
    given = {PREFIX + name: value for name, value in params.items()}
    return "yes" if _satisfied(wanted, given) else "no"


def _bad_entries(entries: Dict[str, Any], variable: str) -> List[str]:
    return [
        f"{variable} has an entry {name!r}: {value!r} that cannot stand in a modprobe.d line; use"
        " letters, digits and _ for names, and numbers or plain words for values."
        for name, value in entries.items()
        if not _KEY.match(str(name)) or not _VALUE.match(_text(value)) or _text(value) == ""
    ]


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _join(entries: Dict[str, str]) -> str:
    return "".join(f"{key}={value};" for key, value in entries.items())


def _quoted(name: str, value: str) -> str:
    return f'"{value}"' if name == DWORDS else value
