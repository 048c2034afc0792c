"""After a boot the options are live: the first host's kernel, image and driver, in a machine.

The systemd hosts share the kernel of the machine they run on and load nothing into it. Here the
host's own kernel boots with the image that the rollout left, and loads the stand-in out of it.
"""

from __future__ import annotations

import machine
import pytest
from conftest import NAMES
from walk import fleet_directory


@pytest.fixture(scope="module")
def answer():
    if machine.missing():
        pytest.skip(machine.missing())
    boot = fleet_directory(NAMES[0]) / "root/boot"
    (kernel,) = boot.glob("vmlinuz-*")
    image = boot / kernel.name.replace("vmlinuz", "initrd.img")
    return machine.ask(kernel, image, "cat /proc/driver/nvidia/params /proc/driver/nvidia/version")


def test_the_loaded_driver_has_the_options(answer):
    assert "EnableStreamMemOPs: 1\n" in answer
    assert 'RegistryDwords: "PeerMappingOverride=1;' in answer


def test_it_is_the_driver_that_was_built_on_the_host(answer):
    assert "Open Kernel Module for x86_64  580.1 " in answer
