# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""GDRCopy's own test on a GPU: once for each driver, module, library and program."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple

from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host import (
    gdrcopy,
    procfs,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.record import (
    write_atomically,
)

if TYPE_CHECKING:
    from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.root import (
        HostRoot,
    )

RunCommand = Callable[[List[str]], Tuple[int, str, str]]
PROGRAM = "gdrcopy_sanity"
PASSED_FILE = "/var/lib/epfleet/gdrcopy_sanity.json"
SECONDS = 300
_FOLDERS = ("/usr/bin", "/usr/local/bin")
# The list at the end since 2.4; before, a line of the library check for each failure.
_LISTED = re.compile(r"^List of failed tests:\s*\n\s*(\S+)", re.MULTILINE)
_CHECK_LINE = re.compile(r"^\S+:\d+:[FE]:\w+:(\w+):\d+: (.*)$", re.MULTILINE)
_REASON = re.compile(r"^.*(?:Assertion .* failed|[Ee]rror\b|ERR:).*$", re.MULTILINE)


class SanityError(Exception):
    """The first test that failed, with what it said."""


def program(host: HostRoot) -> Optional[str]:
    """Path of the test; None where it is not installed."""
    paths = (f"{folder}/{PROGRAM}" for folder in _FOLDERS)
    return next((path for path in paths if host.exists(path)), None)


def subject(host: HostRoot, path: str) -> Dict[str, Any]:
    """What a run of the program at ``path`` tests: versions, and the files by size and time."""
    copy = gdrcopy.facts(host)
    files = {}
    for name in (path, copy["library"]):
        status = host.stat(name) if name else None
        files[name] = [status.st_size, int(status.st_mtime)] if status else None
    return {
        "driver": procfs.driver_version(host)[0],
        "gdrdrv": copy["version"],
        "files": {str(name): value for name, value in files.items()},
    }


def has_passed(host: HostRoot, tested: Dict[str, Any]) -> bool:
    """Whether exactly this has passed on this host before."""
    try:
        return bool(json.loads(host.text(PASSED_FILE) or "null") == tested)
    except ValueError:
        return False


def run_tests(host: HostRoot, path: str, tested: Dict[str, Any], run: RunCommand) -> None:
    """Run the program; SanityError names the first test that fails."""
    code, output, errors = run(["timeout", str(SECONDS), path])
    if code != 0:
        raise SanityError(_failure(code, output + "\n" + errors))
    write_atomically(host.path(PASSED_FILE), (json.dumps(tested) + "\n").encode(), 0o644)


def _failure(code: int, text: str) -> str:
    if code == 124:
        return f"it did not end in {SECONDS} s"
    checked, listed = _CHECK_LINE.search(text), _LISTED.search(text)
    reason = _REASON.search(text)
    told = reason.group(0).strip() if reason else f"exit code {code}"
    if checked:
        return f"test {checked.group(1)} failed: {checked.group(2).strip() or told}"
    if listed:
        return f"test {listed.group(1)} failed: {told}"
    return told
