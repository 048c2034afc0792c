"""The way back of the runtime, after all that looks at it: nothing of it is left on a host."""

from __future__ import annotations

import subprocess

import pytest
import testinfra
from conftest import BACKENDS, INVENTORY

testinfra_hosts = BACKENDS

COMMAND = [
    "ansible-playbook",
    f"--inventory={INVENTORY}",
    "--tags=ep_runtime",
    "epfleet.expert_parallel.rollback",
]
FIND = "find / -xdev -path '*ep_runtime*' -o -path '*ep-runtime*' -o -path '/opt/epfleet/venv*'"


@pytest.fixture(scope="module")
def before():
    """What of the runtime each host has, as a check of the search itself."""
    return [testinfra.get_host(backend).check_output(FIND).splitlines() for backend in BACKENDS]


@pytest.fixture(scope="module")
def removed(before):
    return subprocess.run(COMMAND, capture_output=True, text=True, check=False)


def test_there_was_something_to_remove(before):
    assert all("/opt/epfleet/venv/bin/ep-bench" in paths for paths in before)


def test_nothing_is_left(host, removed):
    assert removed.returncode == 0, removed.stdout[-3000:]
    assert host.check_output(FIND) == ""
