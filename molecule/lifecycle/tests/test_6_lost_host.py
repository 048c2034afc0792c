"""A host that does not come back stops the rest and is named; the rerun goes on from there.

The hooks are Slurm's, with commands on the first host that write down how they were called.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import testinfra
from conftest import BACKENDS, NAMES
from walk import Run, boot_counts, fleet_directory

FIRST, LOST, LAST = NAMES
CHANGE = {
    "nvidia_driver_take_over": True,
    "epfleet_serial": [1, "34%"],
    "epfleet_reboot_policy": "always",
    "reboot_timeout": 25,
    "reboot_before": ["slurm_drain"],
    "reboot_after": ["slurm_resume"],
    "reboot_hooks_on": FIRST,
    "nvidia_driver_registry_dwords": {"PeerMappingOverride": 1, "EpfleetLost": 1},
}
COMMANDS = """
printf '#!/bin/sh\\necho "$@" >> /var/tmp/slurm.log\\n' > /usr/local/bin/scontrol
printf '#!/bin/sh\\necho drained\\n' > /usr/local/bin/sinfo
chmod 0755 /usr/local/bin/scontrol /usr/local/bin/sinfo
"""
FLEET = Path(__file__).resolve().parents[3] / "scripts" / "fleet"


def slurm():
    host = testinfra.get_host(BACKENDS[0])
    return host.check_output("cat /var/tmp/slurm.log").splitlines()


@pytest.fixture(scope="module")
def before():
    return boot_counts()


@pytest.fixture(scope="module")
def lost(before):
    first = testinfra.get_host(BACKENDS[0])
    first.check_output(COMMANDS)
    (fleet_directory(LOST) / "stay-down").touch()
    yield Run("site", **CHANGE)
    first.check_output("rm /usr/local/bin/scontrol /usr/local/bin/sinfo")


@pytest.fixture(scope="module")
def calls_of_the_lost_run(lost):
    return slurm()


@pytest.fixture(scope="module")
def after_lost(lost):
    return boot_counts()


@pytest.fixture(scope="module")
def rerun(lost, calls_of_the_lost_run, after_lost):
    (fleet_directory(LOST) / "stay-down").unlink()
    subprocess.run([sys.executable, str(FLEET), "start", LOST], check=True)
    return Run("site", **CHANGE)


def test_the_lost_host_is_named(lost):
    assert lost.status != 0
    assert f"{LOST}: Reboot: " in lost.message()


def test_the_host_before_is_done_and_the_one_after_untouched(after_lost, before):
    assert after_lost == {**before, FIRST: before[FIRST] + 1}


def test_the_lost_host_stays_out_of_service(calls_of_the_lost_run):
    states = [call.split()[1:3] for call in calls_of_the_lost_run]
    assert states == [
        [f"NodeName={FIRST}", "State=DRAIN"],
        [f"NodeName={FIRST}", "State=RESUME"],
        [f"NodeName={LOST}", "State=DRAIN"],
    ]


def test_the_rerun_completes_the_rest_and_reboots_nobody_twice(rerun, before):
    assert rerun.status == 0, rerun.output[-3000:]
    assert boot_counts() == {name: count + 1 for name, count in before.items()}


def test_the_rerun_takes_every_host_back(rerun, calls_of_the_lost_run):
    states = [call.split()[1:3] for call in slurm()[len(calls_of_the_lost_run) :]]
    assert [f"NodeName={LOST}", "State=RESUME"] in states
    assert [f"NodeName={LAST}", "State=RESUME"] in states
    assert [f"NodeName={FIRST}", "State=RESUME"] not in states


def test_and_then_nothing_changes(rerun):
    assert Run("site", **CHANGE).changes == []
