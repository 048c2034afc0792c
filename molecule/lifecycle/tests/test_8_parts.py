"""What belongs to the driver follows it: fabric manager, persistence daemon, nvidia_peermem; a
package that someone holds is asked for first; and the limit on locked memory is lifted.

The packages are stand-ins with units that do nothing; apt, dpkg and systemd are the hosts' own.
That there are NVSwitches, a NIC and a loaded driver, and that nvidia_peermem gets loaded, are
fixtures.
"""

from __future__ import annotations

import pytest
from conftest import BACKENDS, NAMES
from test_7_loaded import ACCEPTED, LOAD
from walk import Run, everywhere

testinfra_hosts = BACKENDS

TAGS = "--tags=nvidia_driver,host_tuning"
OLDER, NEWER = "nvidia-standin-dkms=570.1", "nvidia-standin-dkms=580.1"
# The fixture's devices have no more than the roles look at.
FINDINGS = [*ACCEPTED["epfleet_accepted_findings"], "EPD602", "EPD604"]
WANTED = {
    "epfleet_accepted_findings": FINDINGS,
    "host_tuning_memlock": True,
    "nvidia_driver_take_over": True,
    "nvidia_driver_packages": [OLDER, "nvidia-persistenced"],
    "nvidia_driver_peer_memory": "nvidia_peermem",
    "nvidia_driver_persistenced": True,
}
# /sys is a file system of the host's own in memory; what lies below it is the machine's.
FIXTURES = """
set -e
mount -o remount,rw /sys
for place in /sys/bus/pci/devices /sys/class; do mount -t tmpfs fixture $place; done
mkdir -p /sys/module /sys/bus/pci/devices/0000:07:00.0 /sys/class/infiniband/mlx5_0
echo 0x10de > /sys/bus/pci/devices/0000:07:00.0/vendor
echo 0x068000 > /sys/bus/pci/devices/0000:07:00.0/class
mkdir -p /run/modprobe.d
rule='install nvidia_peermem /bin/mkdir -p /sys/module/nvidia_peermem'
echo "$rule" > /run/modprobe.d/fixture.conf
"""
AWAY = """
umount /sys/class /sys/bus/pci/devices
rm -r /sys/module/nvidia_peermem /run/modprobe.d/fixture.conf
umount /proc/driver
"""
HELD = """
set -e
dpkg --install /srv/bundle/packages/nvidia-fabricmanager-570_570.0_all.deb
apt-mark hold nvidia-fabricmanager-570
"""
PERSISTENCED, FABRIC = "nvidia-persistenced.service", "nvidia-fabricmanager.service"
FACTS = f"""
dpkg-query --show --showformat='${{Package}} ${{Version}} ${{Status}}\\n' 'nvidia-*' | sort
systemctl is-enabled {PERSISTENCED} {FABRIC} || true
systemctl is-active {PERSISTENCED} {FABRIC} || true
systemctl show --property=DefaultLimitMEMLOCK --value
ls /etc/modules-load.d/epfleet-nvidia-peermem.conf /sys/module/nvidia_peermem -d || true
"""


@pytest.fixture(scope="module")
def equipped():
    everywhere(f"bash -s <<'EOF'\n{LOAD}EOF")
    everywhere(FIXTURES)
    yield
    everywhere(AWAY)


@pytest.fixture(scope="module")
def held(equipped):
    """Someone has put an older fabric manager on the hosts and holds it."""
    everywhere(HELD)
    asked = Run("site", TAGS, **WANTED)
    unasked = Run("site", TAGS, **{**WANTED, "nvidia_driver_packages": []})
    return asked, unasked


def test_a_held_package_is_named_with_both_versions(held):
    asked, _unasked = held
    assert asked.status != 0
    assert "nvidia-fabricmanager-570 is held at 570.0 and would become 570.1" in asked.message()
    changed = {task for _name, task in asked.changes}
    assert "Install the fabric manager of the driver's version" not in changed


def test_another_fabric_manager_than_the_driver_is_an_error_with_both_versions(held):
    _asked, unasked = held
    assert unasked.status != 0
    assert unasked.changes == []
    told = "fabric manager is 570.0 where the driver that boots next is 570.1"
    assert told in unasked.message()


@pytest.fixture(scope="module")
def planned(held):
    everywhere("apt-mark unhold nvidia-fabricmanager-570; dpkg --purge nvidia-fabricmanager-570")
    return Run("site", TAGS, "--check", **WANTED)


@pytest.fixture(scope="module")
def installed(planned):
    return Run("site", TAGS, **WANTED), everywhere(FACTS)


def test_the_parts_of_the_driver_are_there_and_run(installed):
    run, facts = installed
    assert run.status == 0, run.output[-3000:]
    for text in facts.values():
        found = text.splitlines()
        assert "nvidia-fabricmanager-570 570.1 install ok installed" in found
        assert found[-7:-2] == ["enabled", "enabled", "active", "active", "infinity"]
        assert found[-2:] == [
            "/etc/modules-load.d/epfleet-nvidia-peermem.conf",
            "/sys/module/nvidia_peermem",
        ]


def test_the_way_into_gpu_memory_is_said(installed):
    assert "NICs reach GPU memory by nvidia_peermem (by choice)." in installed[0].output


def test_check_mode_told_it(planned, installed):
    assert sorted(planned.changes) == sorted(installed[0].changes)
    assert {name for name, _task in planned.changes} == set(NAMES)


def test_and_then_nothing_changes(installed):
    again = Run("site", TAGS, **WANTED)
    assert again.status == 0, again.output[-3000:]
    assert again.changes == []


@pytest.fixture(scope="module")
def upgraded(installed):
    newer = {**WANTED, "nvidia_driver_packages": [NEWER, "nvidia-persistenced"]}
    return Run("site", TAGS, **newer), everywhere(FACTS), Run("site", TAGS, **newer)


def test_the_fabric_manager_follows_the_driver(upgraded):
    """Under another name, too: the older package goes with its place."""
    run, facts, again = upgraded
    assert run.status == 0, run.output[-3000:]
    for text in facts.values():
        lines = text.splitlines()
        assert "nvidia-fabricmanager 580.1 install ok installed" in lines
        assert not any(
            line.startswith("nvidia-fabricmanager-570 570.1 install ok") for line in lines
        )
    assert again.changes == []


@pytest.fixture(scope="module")
def unneeded(upgraded):
    newer = {**WANTED, "nvidia_driver_packages": [NEWER, "nvidia-persistenced"]}
    return Run("site", TAGS, **{**newer, "nvidia_driver_peer_memory": "auto"}), everywhere(
        "ls /etc/modules-load.d"
    )


def test_where_dma_buf_serves_the_module_is_loaded_no_more(unneeded):
    run, facts = unneeded
    assert run.status == 0, run.output[-3000:]
    assert "NICs reach GPU memory by DMA-BUF (kernel " in run.output
    assert not any("epfleet" in text for text in facts.values())
