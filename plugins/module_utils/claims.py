# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Taking driver parameters out of someone else's configuration, and putting them back.

Two kinds of place win over our option file: modprobe.d files that sort later, and the kernel's
command line, which is written by the boot loader's configuration.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Tuple

from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host import modprobe
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.record import (
    Record,
    digest,
    edit_file,
    write_atomically,
)

if TYPE_CHECKING:
    from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.root import (
        HostRoot,
    )

RunCommand = Callable[[List[str]], Tuple[int, str, str]]
_BOOT_CONFIGURATION = (
    "/etc/default/grub",
    "/etc/default/grub.d/*.cfg",
    "/etc/kernel/cmdline",
    "/boot/loader/entries/*.conf",
)
# What makes the boot loader read its configuration again: the first that the host has.
_BOOT_COMMANDS = (
    ("/usr/sbin/update-grub", ["update-grub"]),
    ("/usr/sbin/grub2-mkconfig", ["grub2-mkconfig", "-o", "/boot/grub2/grub.cfg"]),
)
_MARK = "# taken over by epfleet.expert_parallel: "


class ClaimError(Exception):
    """Why a line cannot be taken over or put back; nothing was changed."""


def without(line: str, module: str, parameters: List[str]) -> str:
    """An ``options`` line of ``module`` without ``parameters``; the old line stays as a comment."""
    words = line.split(None, 2)
    if len(words) < 3 or words[0] != "options" or not _same(words[1], module):
        return line
    kept = words[2]
    for parameter in parameters:
        kept = _assignment(parameter).sub("", " " + kept).strip()
    if kept == words[2].strip():
        return line
    rest = f"options {words[1]} {kept}\n" if kept else ""
    return f"{_MARK}{line.rstrip()}\n{rest}"


def _assignment(parameter: str) -> re.Pattern[str]:
    name = re.escape(parameter).replace("_", "[-_]")
    return re.compile(rf'\s{name}(?:=(?:"[^"]*"|[^\s"]*(?:"[^"]*")?\S*))?(?=\s|$)')


def _same(first: str, second: str) -> bool:
    return first.replace("-", "_") == second.replace("-", "_")


def plan(host: HostRoot, module: str, claims: List[Dict[str, str]]) -> Dict[str, bytes]:
    """``{path: new content}`` that takes every claim (``parameter``, ``source``) out.

    Raises ClaimError for one that would still be there afterwards.
    """
    edits: Dict[str, bytes] = {}
    by_source: Dict[str, List[str]] = {}
    for claim in claims:
        by_source.setdefault(claim["source"], []).append(claim["parameter"])
    for source, parameters in sorted(by_source.items()):
        if source == modprobe.COMMAND_LINE:
            edits.update(_boot_edits(host, module, parameters))
            continue
        before = host.data(source) or b""
        lines = before.decode("utf-8", "surrogateescape").splitlines(keepends=True)
        after = "".join(without(line, module, parameters) for line in lines)
        content = after.encode("utf-8", "surrogateescape")
        files = [modprobe.ConfigFile(source, content, None)]
        left = {item.parameter for item in modprobe.module_config(files, module).assignments}
        if left & set(parameters):
            raise ClaimError(
                f"{source} sets {', '.join(sorted(left & set(parameters)))} in a form that is not"
                " taken over by itself (a line continued with a backslash); remove it by hand."
            )
        edits[source] = content
    return edits


def _boot_edits(host: HostRoot, module: str, parameters: List[str]) -> Dict[str, bytes]:
    names = "|".join(re.escape(parameter).replace("_", "[-_]") for parameter in parameters)
    owner = re.escape(module).replace("_", "[-_]").replace(r"\-", "[-_]")
    # In GRUB's files the whole line is quoted already, so a value's own quotes are escaped.
    token = re.compile(
        rf'(?P<before>[\s"\'=]){owner}\.(?:{names})=(?:\\?"[^"]*"|[^\s"\']*)(?P<after>[ \t]?)'
    )
    edits = {}
    for pattern in _BOOT_CONFIGURATION:
        for path in host.glob(pattern) if "*" in pattern else [pattern]:
            text = host.text(path)
            if text is None:
                continue
            lines = [
                line if line.startswith("#") else token.sub(r"\g<before>", " " + line)[1:]
                for line in text.splitlines(keepends=True)
            ]
            if "".join(lines) != text:
                edits[path] = "".join(lines).encode()
    if not edits:
        raise ClaimError(
            f"The kernel's command line sets {', '.join(parameters)} of {module}, and none of"
            f" {', '.join(_BOOT_CONFIGURATION)} does; remove it where this host's boot loader is"
            " configured, reboot, then run again."
        )
    return edits


def apply(
    host: HostRoot, record: Record, owner: str, edits: Dict[str, bytes], run: RunCommand
) -> None:
    """Write the edits of ``plan``, each file's first state kept in the record."""
    for path, content in edits.items():
        edit_file(host, record, owner, path, content)
    _refresh_boot(list(edits), run, host)


def restorable(host: HostRoot, record: Record, owner: str) -> Dict[str, bytes]:
    """``{path: first content}`` of the files that ``apply`` changed for ``owner``.

    Raises ClaimError for one that somebody else has changed since.
    """
    found = {}
    for path, entry in record.section("files").items():
        if entry["owner"] != owner:
            continue
        first = base64.b64decode(entry["content"])
        now = host.data(path)
        if now == first or now is None:
            # Put back by hand, by a killed run, or removed with the package it came with.
            continue
        if digest(now) != entry["written"]:
            raise ClaimError(
                f"{path} was changed after it was taken over, so its first state is not put back;"
                f" look for the lines that begin with {_MARK.strip()!r} and put them back by hand,"
                " or remove them, then run again."
            )
        found[path] = first
    return found


def restore(
    host: HostRoot, record: Record, owner: str, files: Dict[str, bytes], run: RunCommand
) -> None:
    """Put the files of ``restorable`` back and forget them."""
    for path, content in files.items():
        status = host.stat(path)
        write_atomically(host.path(path), content, status.st_mode & 0o7777 if status else 0o644)
    _refresh_boot(list(files), run, host)
    kept = record.section("files")
    for path in [path for path, entry in kept.items() if entry["owner"] == owner]:
        del kept[path]
    record.save()


def _refresh_boot(paths: List[str], run: RunCommand, host: HostRoot) -> None:
    if not any(path.startswith("/etc/default/grub") for path in paths):
        return
    command: Optional[List[str]] = next(
        (words for program, words in _BOOT_COMMANDS if host.exists(program)), None
    )
    if command is None:
        return
    code, output, errors = run(command)
    if code != 0:
        raise ClaimError(
            f"`{' '.join(command)}` failed with {code}, so the boot loader still has the old"
            f" command line: {(errors or output).strip()[-300:]}"
        )
