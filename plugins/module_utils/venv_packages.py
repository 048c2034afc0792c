# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""The packages of a virtual environment, as its own interpreter sees them."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_venv import (
    VenvError,
    clean_environment,
    run,
)

_TIMEOUT_S = 600

_ASK_VERSIONS = """
import importlib.metadata as metadata, json, re
print(json.dumps({
    re.sub(r"[-_.]+", "-", item.metadata["Name"]).lower(): item.version
    for item in metadata.distributions() if item.metadata["Name"]
}))
"""

# Of the names given, those that nothing else needs; the needs of what goes do not count.
_ASK_UNNEEDED = """
import importlib.metadata as metadata, json, re, sys
from pip._vendor.packaging.requirements import Requirement
normal = lambda name: re.sub(r"[-_.]+", "-", name).lower()
needs = {}
for item in metadata.distributions():
    wanted = set()
    for text in item.requires or []:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            wanted.add(normal(requirement.name))
    needs[normal(item.metadata["Name"])] = wanted
given = json.load(sys.stdin)
going = {name for name in given["going"] + given["candidates"] if name in needs}
while True:
    kept = set().union(*[wanted for name, wanted in needs.items() if name not in going])
    back = (going - set(given["going"])) & kept
    if not back:
        break
    going -= back
print(json.dumps(sorted(going)))
"""


def versions(python: str) -> dict[str, str]:
    """Return name and version of everything that ``python`` can import from a distribution."""
    answer: dict[str, str] = json.loads(run([python, "-I", "-c", _ASK_VERSIONS]))
    return answer


def unneeded(python: str, going: list[str], candidates: list[str]) -> list[str]:
    """Return what to remove with ``going``: those of ``candidates`` that then nothing needs."""
    question = json.dumps({"going": going, "candidates": candidates})
    answer: list[str] = json.loads(run([python, "-I", "-c", _ASK_UNNEEDED], stdin=question))
    return answer


def pip_problems(python: str) -> list[str]:
    """Return the lines of ``pip check``: requirements of installed packages that are not met."""
    command = [python, "-m", "pip", "--no-input", "--disable-pip-version-check", "check"]
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
            timeout=_TIMEOUT_S,
            env=clean_environment(),
            cwd="/",
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise VenvError(f"pip check failed: {error}") from error
    if done.returncode == 0:
        return []
    lines = done.stdout.strip().splitlines()
    if not lines:
        raise VenvError(f"pip check failed: {done.stderr.strip()}")
    return lines


def constraints(installed: dict[str, str], free: tuple[str, ...]) -> str:
    """Return a pip constraints file that keeps ``installed`` as it is, but for ``free``."""
    kept: dict[str, Any] = {name: v for name, v in installed.items() if name not in free}
    return "".join(f"{name}=={version}\n" for name, version in sorted(kept.items()))
