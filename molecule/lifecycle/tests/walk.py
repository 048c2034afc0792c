"""Runs playbooks over the lifecycle hosts, and looks into what they leave there."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import testinfra
from conftest import BACKENDS, INVENTORY, NAMES, RESULTS, RUNNER

OPTIONS = "/etc/modprobe.d/zz-epfleet-nvidia.conf"
LINE = 'options nvidia NVreg_EnableStreamMemOPs=1 NVreg_RegistryDwords="PeerMappingOverride=1;"'
ENVIRONMENT = {**os.environ, "ANSIBLE_FORCE_COLOR": "0", "ANSIBLE_NOCOLOR": "1"}
SKIP = "nvshmem,ep_runtime,ep_benchmark"


class Run:
    """One finished run of a playbook: its exit status, its output, what it changed."""

    def __init__(self, name, *arguments, limit=None, skip=SKIP, **variables):
        # Most of the walk is not about reboots, and without a loaded driver none is needed.
        variables.setdefault("epfleet_reboot_policy", "when_needed")
        command = [
            "ansible-playbook",
            f"--inventory={INVENTORY}",
            f"--skip-tags={skip}",
            f"--extra-vars={json.dumps(variables)}",
            *([f"--limit={limit},localhost"] if limit else []),
            *arguments,
            f"epfleet.expert_parallel.{name}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)
        self.status, self.output = done.returncode, done.stdout + done.stderr
        newest = max((RESULTS / "changes").iterdir(), key=lambda path: float(path.name[:14]))
        self.changes = [tuple(item) for item in json.loads(newest.read_text())["changes"]]

    def tasks(self, host):
        """Names of the tasks that changed `host`."""
        return [task for name, task in self.changes if name == host]

    def message(self):
        """Everything that failed tasks said, on one line, as prose reads."""
        _before, _marker, after = self.output.partition("[ERROR]")
        return " ".join(after.split())


def everywhere(command):
    """Run `command` on every host; {name: output}.

    Pytest runs all tests of a module on one host and then on the next. What a fixture in the middle
    of a walk left is therefore looked at by the fixture, on all hosts.
    """
    return {
        name: testinfra.get_host(backend).check_output(command)
        for name, backend in zip(NAMES, BACKENDS)
    }


def fleet_directory(name):
    """The folder outside of the host with its logs."""
    return Path(RUNNER.get_variables(name)["fleet_directory"])


def boot_counts():
    """How often each host was started; {name: count}."""
    return {name: len((fleet_directory(name) / "boots").read_text().splitlines()) for name in NAMES}


def inside_image(host, kernel, path=OPTIONS):
    """The lines that modprobe reads of `path` inside the image; None when it is not there."""
    image = f"/boot/initrd.img-{kernel}"
    unpacked = host.check_output("mktemp --directory")
    if host.exists("lsinitrd"):
        host.check_output(f"cd {unpacked} && lsinitrd --unpack {image}")
    else:
        host.check_output("unmkinitramfs %s %s", image, unpacked)
    found = host.check_output("find %s -path '*%s'", unpacked, path).split()
    text = host.file(found[0]).content_string if found else None
    host.check_output("rm -r %s", unpacked)
    return None if text is None else lines(text)


def image_names(host, kernel):
    """The names of all files of the image."""
    image = f"/boot/initrd.img-{kernel}"
    tool = "lsinitrd" if host.exists("lsinitrd") else "lsinitramfs"
    return host.check_output(f"{tool} {image}")


def lines(text):
    """Lines that are no comment."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def kernels(host):
    """Releases of the host's installed kernels."""
    return host.check_output("ls /lib/modules").split()
