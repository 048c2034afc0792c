"""CPU-assisted mode: gdrdrv built for real against the installed driver, NVSHMEM old and then new.

Everything comes from the bundle, with the hosts' network cut off. No kernel here loads gdrdrv: that
it is loaded, and its major number, come from fixtures.
"""

from __future__ import annotations

import pytest
from conftest import BACKENDS
from walk import Run, everywhere

testinfra_hosts = BACKENDS

ROLES = "--tags=nvidia_driver,gdrcopy,nvshmem"
CPU = {
    "epfleet_ibgda_mode": "cpu",
    "nvidia_driver_take_over": True,
    "skip": "ep_runtime,ep_benchmark",
}
NVSHMEM = "/opt/epfleet/nvshmem/current/nvidia/nvshmem"
PLUGIN = f"{NVSHMEM}/lib/nvshmem_bootstrap_uid.so.3"
ENVIRONMENT = "cat /opt/epfleet/nvshmem/nvshmem.env"
FIXTURES = """
mkdir -p /run/modprobe.d
echo 'install gdrdrv /bin/true' > /run/modprobe.d/fixture.conf
printf 'Character devices:\\n234 gdrdrv\\n\\nBlock devices:\\n' > /run/devices
mount --bind /run/devices /proc/devices
ip route del default 2>/dev/null || true
"""
AWAY = "umount /proc/devices; rm /run/modprobe.d/fixture.conf"
# One fact a line, of every kernel: what gdrdrv is, and what it was built against.
GDRDRV = """
for kernel in $(ls /lib/modules); do
  modinfo -k $kernel -F version gdrdrv
  modinfo -k $kernel -F license gdrdrv
  modinfo -k $kernel -F version nvidia
done
grep -o 'NVIDIA_SRC_DIR=[^ ]* NVIDIA_IS_OPENSOURCE=y*' /usr/src/gdrdrv-2.5.2/dkms.conf
"""


@pytest.fixture(scope="module")
def cut_off():
    everywhere(FIXTURES)
    yield everywhere(
        "ip route show default; python3 -c 'import socket; socket.setdefaulttimeout(2);"
        ' print(socket.socket().connect_ex(("192.0.2.1", 80)))\''
    )
    everywhere(AWAY)


@pytest.fixture(scope="module")
def planned(cut_off):
    return Run("site", ROLES, "--check", **CPU)


@pytest.fixture(scope="module")
def installed(planned):
    return Run("site", ROLES, **CPU), everywhere(GDRDRV)


def test_hosts_have_no_way_out(cut_off):
    unreachable = "101"
    assert set(cut_off.values()) == {unreachable}


def test_gdrdrv_is_built_against_the_driver_in_its_flavour(installed):
    run, facts = installed
    assert run.status == 0, run.output[-3000:]
    against = "NVIDIA_SRC_DIR=/usr/src/nvidia-580.1 NVIDIA_IS_OPENSOURCE=y"
    for text in facts.values():
        assert text.splitlines() == ["2.5.2", "Dual MIT/GPL", "580.1", against]


def test_check_mode_told_it(planned, installed):
    assert sorted(planned.changes) == sorted(installed[0].changes)


def test_the_loader_finds_the_library(host, installed):
    assert "/usr/local/lib/libgdrapi.so.2" in host.check_output("ldconfig -p")


def test_the_device_has_the_modules_major(host, installed):
    assert host.check_output("stat -c '%t %a' /dev/gdrdrv") == "ea 666"
    assert host.service("epfleet-gdrdrv").is_enabled


@pytest.fixture(scope="module")
def other_driver(installed):
    run = Run("site", ROLES, nvidia_driver_packages=["nvidia-standin-dkms=570.1"], **CPU)
    return run, everywhere(GDRDRV), everywhere(ENVIRONMENT)


def test_another_driver_has_gdrdrv_built_anew(other_driver):
    run, facts, _environment = other_driver
    assert run.status == 0, run.output[-3000:]
    against = "NVIDIA_SRC_DIR=/usr/src/nvidia-570.1 NVIDIA_IS_OPENSOURCE=y"
    for text in facts.values():
        assert text.splitlines() == ["2.5.2", "Dual MIT/GPL", "570.1", against]


def test_old_nvshmem_insists_on_gdrcopy(other_driver):
    for text in other_driver[2].values():
        assert "NVSHMEM_IBGDA_NIC_HANDLER=cpu" in text.splitlines()


@pytest.fixture(scope="module")
def newer(other_driver):
    packages = ["nvidia-standin-dkms=570.1"]
    arguments = {"nvidia_driver_packages": packages, "nvshmem_version": "3.8.0", **CPU}
    return Run("site", ROLES, **arguments), Run("site", ROLES, **arguments)


def test_an_upgrade_of_nvshmem_keeps_the_version_before(host, newer):
    run, again = newer
    assert run.status == 0, run.output[-3000:]
    header = " ".join(host.check_output(f"cat {NVSHMEM}/include/non_abi/nvshmem_version.h").split())
    for name, value in (("MAJOR", 3), ("MINOR", 8), ("PATCH", 0)):
        assert f"NVSHMEM_VENDOR_{name}_VERSION {value}" in header
    assert host.file("/opt/epfleet/nvshmem/3.3.24/nvidia/nvshmem").is_directory
    assert again.changes == []


def test_new_nvshmem_needs_no_gdrcopy_and_says_so(newer):
    assert "NVSHMEM 3.8.0 serves CPU-assisted mode without GDRCopy." in newer[0].output


@pytest.fixture(scope="module")
def unfit(newer):
    """Settings and a copy with which no job would start, each told by the library itself."""
    arguments = {"nvshmem_version": "3.8.0", **CPU}
    tags = "--tags=nvshmem"
    before = everywhere(ENVIRONMENT)
    name = Run("site", tags, nvshmem_settings={"BOOTSTRAP_UID_SOCK_IFNAME": "no0"}, **arguments)
    everywhere(f"mv {PLUGIN} /var/tmp/")
    plugin = Run("site", tags, nvshmem_settings={"IB_GID_INDEX": 3}, **arguments)
    assert everywhere(ENVIRONMENT) == before
    everywhere(f"mv /var/tmp/{PLUGIN.rsplit('/', 1)[1]} {PLUGIN}")
    whole = Run("site", tags, nvshmem_settings={"IB_GID_INDEX": 3}, **arguments)
    return name, plugin, whole


def test_an_interface_that_is_not_there_is_told_by_the_uid_bootstrap(unfit):
    assert unfit[0].status != 0
    assert "No socket interface found" in unfit[0].message()
    assert unfit[0].changes == []


def test_a_copy_without_its_plugin_is_told_by_the_uid_bootstrap(unfit):
    assert unfit[1].status != 0
    missing = "nvshmem_bootstrap_uid.so.3: cannot open shared object file"
    assert missing in unfit[1].message()


def test_what_works_is_told_to_jobs(host, unfit):
    assert unfit[2].status == 0, unfit[2].output[-3000:]
    text = host.file("/opt/epfleet/nvshmem/nvshmem.env").content_string
    assert "NVSHMEM_IB_GID_INDEX=3" in text.splitlines()
