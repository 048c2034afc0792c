# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""What a host was before the roles changed it, kept on the host so that rollback can restore it.

Only what existed before is kept: a file of our own is undone by removing it. Every entry is written
before the change it describes, so a run that is killed in between leaves an entry too many and
never one too few.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.facts import (
    CHANGES_FILE,
)

if TYPE_CHECKING:
    from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.root import (
        HostRoot,
    )

RECORD_FILE = "/var/lib/epfleet/record.json"
SCHEMA = 1


class RecordError(Exception):
    """The record is there and cannot be used; says what to do."""


class Record:
    """The record of one host; ``save`` after each alteration."""

    def __init__(self, host: HostRoot) -> None:
        self._host = host
        self.data: Dict[str, Any] = {"schema": SCHEMA}
        if not host.exists(RECORD_FILE):
            return
        try:
            content = json.loads(host.text(RECORD_FILE) or "")
        except ValueError as error:
            raise RecordError(
                f"{RECORD_FILE} is damaged ({error}), so nobody knows what this host was before;"
                " restore it from a backup, or remove it to take the host as it is for its origin."
            ) from error
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            raise RecordError(
                f"{RECORD_FILE} is not of schema {SCHEMA}; use the version of the collection that"
                " wrote it to roll back."
            )
        self.data = content

    def section(self, name: str) -> Dict[str, Any]:
        """The part ``name`` of the record, empty at first; a change of it is kept by ``save``."""
        part: Dict[str, Any] = self.data.setdefault(name, {})
        return part

    def save(self) -> None:
        """Write the record in one step; with nothing to remember there is no file."""
        target = self._host.path(RECORD_FILE)
        kept = {name: part for name, part in self.data.items() if name == "schema" or part}
        if len(kept) == 1:
            if os.path.exists(target):
                os.unlink(target)
            return
        text = json.dumps(kept, indent=2, sort_keys=True) + "\n"
        write_atomically(target, text.encode(), 0o600)


def note_boot(host: HostRoot, command_line: Optional[List[str]] = None) -> None:
    """Record that what a boot reads changes in this boot; before the change itself.

    ``command_line`` names driver parameters that the next boot's kernel command line no longer
    sets.
    """
    boot = host.line("/proc/sys/kernel/random/boot_id")
    try:
        before = json.loads(host.text(CHANGES_FILE) or "{}")
    except ValueError:
        before = {}
    content: Dict[str, Any] = {"boot_id": boot}
    known = before.get("command_line", []) if before.get("boot_id") == boot else []
    if known or command_line:
        content["command_line"] = sorted({*known, *(command_line or [])})
    if before != content:
        write_atomically(host.path(CHANGES_FILE), (json.dumps(content) + "\n").encode(), 0o644)


def write_atomically(target: str, content: bytes, mode: int) -> None:
    """Put ``content`` at ``target`` in one step, on disk before it counts."""
    os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
    fresh = f"{target}.epfleet-new"
    try:
        with open(fresh, "wb") as stream:
            stream.write(content)
            os.fchmod(stream.fileno(), mode)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(fresh, target)
    finally:
        if os.path.exists(fresh):
            os.unlink(fresh)


def digest(content: bytes) -> str:
    """SHA-256 of ``content`` in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def edit_file(host: HostRoot, record: Record, owner: str, path: str, content: bytes) -> None:
    """Rewrite someone else's file, its first state kept under ``owner`` in the record."""
    real = host.path(path)
    status = os.stat(real)
    files = record.section("files")
    with open(real, "rb") as stream:
        before = stream.read()
    if path not in files:
        files[path] = {"owner": owner, "content": base64.b64encode(before).decode("ascii")}
    files[path]["written"] = digest(content)
    record.save()
    write_atomically(real, content, stat.S_IMODE(status.st_mode))
    os.chown(real, status.st_uid, status.st_gid)


def original(record: Record, path: str) -> Optional[bytes]:
    """The first state of a file that ``edit_file`` rewrote; None when it never was."""
    entry = record.section("files").get(path)
    return None if entry is None else base64.b64decode(entry["content"])
