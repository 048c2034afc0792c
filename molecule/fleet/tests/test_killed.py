"""Controllers killed in the middle of a change: the next run completes it, with one reboot a host.

Runs after test_hosts.py has looked at the undisturbed rollout. The change is one more registry
entry, so that the option file, the images and the boot all have to follow.
"""

from __future__ import annotations

import json
import os
import subprocess
import time

import pytest
from conftest import BACKENDS, INVENTORY

testinfra_hosts = BACKENDS

OPTIONS = "/etc/modprobe.d/zz-epfleet-nvidia.conf"
DWORDS = {"PeerMappingOverride": 1, "EpfleetKilled": 1}
COMMAND = [
    "ansible-playbook",
    f"--inventory={INVENTORY}",
    f"--extra-vars={json.dumps({'nvidia_driver_registry_dwords': DWORDS})}",
    "--skip-tags=ep_benchmark",  # no part of the change, and most of the time
    "epfleet.expert_parallel.site",
]
ENVIRONMENT = {**os.environ, "ANSIBLE_FORCE_COLOR": "0", "ANSIBLE_NOCOLOR": "1"}
# The task at whose announcement the controller dies, and the seconds it is given before.
MOMENTS = [
    ("nvidia_driver : Write the option file", 0.5),
    # The file is right, nothing else is; a run that finds it so has no step of its own for it.
    ("nvidia_driver : Check what the next load of the driver gets", 0.0),
    ("initramfs : Rebuild the stale images", 1.5),
    ("reboot : Reboot]", 0.5),
]


def kill_at(task, seconds):
    """Start the rollout and kill its controller; what it started on the hosts may go on."""
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        for line in process.stdout:
            if line.startswith("TASK") and task in line:
                time.sleep(seconds)
                process.kill()
                return
    pytest.fail(f"the rollout ended before {task!r}")


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)


@pytest.fixture(scope="module")
def completed():
    """The run that nobody killed, after four that were."""
    for task, seconds in MOMENTS:
        kill_at(task, seconds)
    return run(*COMMAND)


def test_the_next_run_completes(host, completed):
    assert completed.returncode == 0, completed.stdout[-3000:]


def test_options_are_changed_in_the_file_and_in_the_image(host, completed):
    assert "EpfleetKilled=1" in host.file(OPTIONS).content_string
    for kernel in host.check_output("ls /lib/modules").split():
        unpacked = host.check_output("mktemp --directory")
        host.check_output("unmkinitramfs /boot/initrd.img-%s %s", kernel, unpacked)
        found = host.check_output("find %s -path '*%s'", unpacked, OPTIONS)
        assert "EpfleetKilled=1" in host.file(found).content_string
        host.check_output("rm -r %s", unpacked)


def test_host_rebooted_once_more(host, completed, boots):
    assert len(boots) == 3


@pytest.fixture(scope="module")
def repeated(completed):
    return run(*COMMAND)


def test_and_then_nothing_changes(host, repeated):
    assert repeated.returncode == 0, repeated.stdout[-3000:]
    recap = repeated.stdout.partition("PLAY RECAP")[2].splitlines()
    assert "changed=0" in next(line for line in recap if line.startswith(host.backend.host))
