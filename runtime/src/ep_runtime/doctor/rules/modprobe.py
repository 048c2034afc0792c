# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Driver options: intended, written, overridden, live."""

from __future__ import annotations

import re
from typing import Any, Dict, List, Optional

from ..host import modprobe
from ..intent import wanted_options
from ..model import ERROR, WARNING, Evidence, Facts, Intent, rule

_DWORD = re.compile(r"^[A-Za-z]\w*=(?:0[xX][0-9a-fA-F]+|\d+)$")
_NAME = re.compile(r"^\w+$")
_SLOW = (
    "The GPU cannot ring the NIC's doorbell: NVSHMEM before 3.4.5 fails to start, later versions"
    " fall back to a CPU thread without an error and every message takes longer."
)


def _where(item: Dict[str, Any]) -> str:
    return f"{item['source']}:{item['line']}"


def _would_load(facts: Facts, intent: Intent) -> Dict[str, bool]:
    given = facts["nvidia"]["modprobe"]["options"]
    return {
        name: name in given and modprobe.gives(name, value, given[name])
        for name, value in wanted_options(intent).items()
    }


def _winner(facts: Facts, parameter: str) -> Optional[Dict[str, Any]]:
    items = facts["nvidia"]["modprobe"]["assignments"]
    found = [item for item in items if item["parameter"] == parameter]
    return found[-1] if found else None


def _overridden(facts: Facts, intent: Intent, by_command_line: bool) -> List[Evidence]:
    """Wanted values that are written somewhere, and lose."""
    found = []
    for name, value in wanted_options(intent).items():
        last = _winner(facts, name)
        if last is None or modprobe.gives(name, value, last["value"]):
            continue
        others = facts["nvidia"]["modprobe"]["assignments"]
        written = any(
            item["parameter"] == name and modprobe.gives(name, value, item["value"])
            for item in others
        )
        from_command_line = last["source"] == modprobe.COMMAND_LINE
        if from_command_line == by_command_line and (written or by_command_line):
            found.append(Evidence(_where(last), f"{name}={last['value']}", f"{name}={value}"))
    return found


@rule(
    "EPD101",
    ERROR,
    "Driver options are written, but the loaded driver does not have them",
    _SLOW,
    "Reboot the host: role reboot does it (epfleet_reboot_policy: when_needed), or `systemctl"
    " reboot`.",
    role="reboot",
)
def not_live(facts: Facts, intent: Intent) -> List[Evidence]:
    """The files give the right options, the loaded module has others: it was loaded before they
    were written, and the host has not booted since. Compared with `/proc/driver/nvidia/params`,
    the only place that shows what the loaded module really has.
    """
    params = facts["nvidia"]["params"]
    if params is None:
        return []
    would = _would_load(facts, intent)
    found = []
    for name, value in wanted_options(intent).items():
        live = params.get(name[len("NVreg_") :])
        if would[name] and live is not None and not modprobe.gives(name, value, live):
            where = "/proc/driver/nvidia/params"
            found.append(Evidence(where, f"{name[6:]}: {live or 'empty'}", value))
    return found


@rule(
    "EPD102",
    ERROR,
    "Driver options are not written",
    _SLOW,
    "Run role nvidia_driver (variables nvidia_driver_options, nvidia_driver_registry_dwords).",
    role="nvidia_driver",
)
def not_written(facts: Facts, intent: Intent) -> List[Evidence]:
    """No file in modprobe.d and nothing on the kernel's command line asks for the options. If the
    loaded driver has them nevertheless, someone loaded it by hand, and the next load loses them.
    """
    found = []
    for name, value in wanted_options(intent).items():
        items = facts["nvidia"]["modprobe"]["assignments"]
        values = [item["value"] for item in items if item["parameter"] == name]
        if not any(modprobe.gives(name, value, given) for given in values):
            if _winner(facts, name) is None or not values:
                seen = f"{name} is not set"
            elif _winner(facts, name)["source"] == modprobe.COMMAND_LINE:  # type: ignore[index]
                continue
            else:
                seen = f"{name}={values[-1]}"
            found.append(Evidence(modprobe.OPTIONS_FILE, seen, f"{name}={value}"))
    return found


@rule(
    "EPD103",
    ERROR,
    "Another modprobe.d line overrides the driver options",
    "The kernel takes the last assignment of a parameter whole, so the wanted value is lost at each"
    " load. " + _SLOW,
    "Remove {seen} from {where} and put its entries into nvidia_driver_registry_dwords or"
    " nvidia_driver_options. nvidia_driver_take_over: true takes over lines that are read before"
    " ours, not those read after.",
)
def overridden(facts: Facts, intent: Intent) -> List[Evidence]:
    """A file that sorts later sets the same parameter to something else. modprobe joins all files
    in the order of their names, and the kernel keeps only the last value.
    """
    return _overridden(facts, intent, by_command_line=False)


@rule(
    "EPD104",
    ERROR,
    "The kernel command line overrides the driver options",
    "What the boot loader passes is read after all files, so no file can win against it. " + _SLOW,
    "Remove the nvidia.* parameter from GRUB_CMDLINE_LINUX in /etc/default/grub (or the boot"
    " entry),"
    " run `update-grub` or `grub2-mkconfig -o /boot/grub2/grub.cfg`, and reboot.",
)
def overridden_by_command_line(facts: Facts, intent: Intent) -> List[Evidence]:
    """`nvidia.NVreg_...` on the kernel's command line is parsed last and replaces the files'
    value. Quotes and semicolons are often eaten on their way through GRUB, too.
    """
    return _overridden(facts, intent, by_command_line=True)


@rule(
    "EPD105",
    WARNING,
    "Several places set the same driver option to different values",
    "Today the right one wins. A renamed or added file changes that without a word.",
    "Merge them: remove {seen} from {where}.",
)
def fragile(facts: Facts, intent: Intent) -> List[Evidence]:
    """More than one file sets a wanted parameter, and the values differ. The wanted value comes
    last now; the order is that of file names.
    """
    found = []
    would = _would_load(facts, intent)
    for conflict in facts["nvidia"]["modprobe"]["conflicts"]:
        name = conflict["parameter"]
        if not would.get(name):
            continue
        for loser in conflict["overrides"]:
            found.append(
                Evidence(_where(loser), f"{name}={loser['value']}", f"{name}={conflict['value']}")
            )
    return found


@rule(
    "EPD106",
    ERROR,
    "NVreg_RegistryDwords is quoted wrongly",
    "The driver reads no such registry entry and ignores it silently. " + _SLOW,
    'Write it as NVreg_RegistryDwords="PeerMappingOverride=1;" in {where}: double quotes around the'
    " whole value, entries KEY=NUMBER with semicolons, no blanks.",
)
def badly_quoted(facts: Facts, intent: Intent) -> List[Evidence]:
    """The value holds quotes, or entries that are not `KEY=NUMBER`, or the next word of the line is
    an entry that fell out of it at a blank. Neither modprobe nor the kernel knows single quotes.
    """
    found = []
    items = facts["nvidia"]["modprobe"]["assignments"]
    for index, item in enumerate(items):
        if item["parameter"] != "NVreg_RegistryDwords":
            continue
        value = item["value"] or ""
        entries = [entry.strip() for entry in value.split(";") if entry.strip()]
        wrong = not entries or any(_DWORD.match(entry) is None for entry in entries)
        rest = items[index + 1] if index + 1 < len(items) else None
        spilt = (
            rest is not None
            and (rest["source"], rest["line"]) == (item["source"], item["line"])
            and not rest["parameter"].startswith("NVreg_")
            and (rest["value"] or "").rstrip(";'\"").isdigit()
            and value.endswith(";")
        )
        if spilt and rest is not None:
            value += f" {rest['parameter']}={rest['value']}"
        if wrong or spilt:
            found.append(Evidence(_where(item), f"NVreg_RegistryDwords={value}", "KEY=NUMBER;..."))
    return found


@rule(
    "EPD107",
    WARNING,
    "An options line of the driver holds words that are no parameters",
    "The kernel logs `nvidia: unknown parameter` and ignores them; what follows a # is no comment.",
    "Correct {where}; comments need a line of their own.",
)
def no_parameter(facts: Facts, intent: Intent) -> List[Evidence]:
    """modprobe.d knows comments only at the start of a line. A trailing one is handed to the kernel
    word by word.
    """
    return [
        Evidence(_where(item), item["parameter"], "a parameter of nvidia.ko")
        for item in facts["nvidia"]["modprobe"]["assignments"]
        if _NAME.match(item["parameter"]) is None and item["source"] != modprobe.COMMAND_LINE
    ]


@rule(
    "EPD108",
    WARNING,
    "A modprobe.d file hides a vendor's file of the same name",
    "Whatever the hidden file says is off: often the line that keeps nouveau away from the GPUs.",
    "Rename the file that hides it (ours is called zz-epfleet-nvidia.conf for that reason), or"
    " repeat"
    " the hidden lines in it.",
)
def masks_vendor(facts: Facts, intent: Intent) -> List[Evidence]:
    """Of two files with one base name in different modprobe.d directories only the one with higher
    priority is read, whole.
    """
    return [
        Evidence(item["masked_by"], f"hides {item['path']}", "a name of its own")
        for item in facts["nvidia"]["modprobe"]["files"]
        if item["masked_by"] and re.search(r"nvidia|nouveau|gpu", item["path"])
    ]


@rule(
    "EPD109",
    WARNING,
    "A file in modprobe.d is ignored because of its name",
    "Its options never reach the driver.",
    "Rename {where} so that it ends in .conf, or remove it.",
)
def ignored_name(facts: Facts, intent: Intent) -> List[Evidence]:
    """Modprobe reads only names that end in `.conf`, and skips hidden files."""
    return [
        Evidence(item["path"], f"options nvidia in line {item['line']}", "a name ending in .conf")
        for item in facts["nvidia"]["modprobe"]["ignored"]
    ]


@rule(
    "EPD110",
    WARNING,
    "A file sets the same driver option more than once",
    "Only the last line counts; the others mislead whoever reads the file.",
    "Keep one line in {where}. Scripts that append (`tee -a`) make one more at each run.",
)
def repeated(facts: Facts, intent: Intent) -> List[Evidence]:
    """The sign of a script that appends to a file each time it runs."""
    lines: Dict[Any, List[int]] = {}
    for item in facts["nvidia"]["modprobe"]["assignments"]:
        lines.setdefault((item["source"], item["parameter"]), []).append(item["line"])
    return [
        Evidence(source, f"{name} in lines {', '.join(map(str, numbers))}", "one line")
        for (source, name), numbers in lines.items()
        if len(numbers) > 1 and source != modprobe.COMMAND_LINE
    ]


@rule(
    "EPD111",
    ERROR,
    "A modprobe.d rule keeps the NVIDIA driver from loading",
    "After the next boot there is no driver and no GPU.",
    "Remove the line {where}.",
)
def forbidden(facts: Facts, intent: Intent) -> List[Evidence]:
    """`install nvidia /bin/false` runs in place of loading the module."""
    found = []
    for item in facts["nvidia"]["modprobe"]["rules"]:
        command = (item["text"].split() or [""])[0].rsplit("/", 1)[-1]
        if item["kind"] == "install" and command in ("true", "false"):
            found.append(Evidence(_where(item), f"install nvidia {item['text']}", "no such line"))
    return found


@rule(
    "EPD112",
    WARNING,
    "The driver runs in a container that does not read this host's modprobe.d",
    "Options written here have no effect: the GPU Operator's container loads the module with its"
    " own.",
    "Set the options in the operator's ConfigMap kernel-module-params and restart the driver pod on"
    " each node; then look at /proc/driver/nvidia/params again.",
)
def driver_container(facts: Facts, intent: Intent) -> List[Evidence]:
    """The mount /run/nvidia/driver belongs to the driver container of NVIDIA's GPU Operator."""
    if facts["container"]["driver_container"] and wanted_options(intent):
        return [Evidence("/run/nvidia/driver", "present", "a driver installed on the host")]
    return []


@rule(
    "EPD113",
    ERROR,
    "The boot loader is set to override the driver options",
    "From the next boot on the kernel's command line wins over all files. " + _SLOW,
    "Remove the nvidia.* parameter from {where}, and run `update-grub` or `grub2-mkconfig -o"
    " /boot/grub2/grub.cfg`.",
)
def boot_loader(facts: Facts, intent: Intent) -> List[Evidence]:
    """GRUB's settings name a driver option with another value than the wanted one. The running
    kernel may have been booted without it.
    """
    module = facts["nvidia"]["modprobe"]["module"]
    wanted = wanted_options(intent)
    found = []
    for item in facts["kernel"]["boot_arguments"]:
        for parameter, value in modprobe.kernel_arguments(item["value"]):
            owner, _dot, name = parameter.partition(".")
            ours = owner == module.replace("-", "_") and name in wanted
            if ours and not modprobe.gives(name, wanted[name], value):
                found.append(Evidence(_where(item), f"{parameter}={value}", wanted[name]))
    return found
