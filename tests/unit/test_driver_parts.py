"""What belongs to the driver fits it: the fabric manager's version, the way into GPU memory."""

from __future__ import annotations

import copy

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import driver_parts as subject
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host import facts
from trees import KERNEL, kernel, loaded, write

NEXT = "6.12.1-amd64"


@pytest.fixture
def host(tmp_path):
    """Facts of a host with the open driver 580.159.04 loaded and installed."""
    write(tmp_path, {**kernel(), **loaded(), "etc/os-release": "ID=debian\n"})
    found = facts.gather(str(tmp_path))
    found["kernel"]["next"]["release"] = KERNEL
    found["modules"]["installed"] = {KERNEL: installed("580.159.04")}
    return found


def installed(version, licence="Dual MIT/GPL", peermem=True):
    modules = {"nvidia": {"version": version, "license": licence}}
    return {**modules, "nvidia_peermem": {"version": version}} if peermem else modules


def with_manager(host, version, enabled=True, active=True):
    return {**host, "fabric": {"version": version, "enabled": enabled, "active": active}}


@pytest.mark.parametrize(
    ("family", "version", "name"),
    [
        ("debian", "580.159.04", "nvidia-fabricmanager"),
        ("debian", "570.172.08", "nvidia-fabricmanager-570"),
        ("redhat", "570.172.08", "nvidia-fabric-manager"),
        ("suse", "570.172.08", "nvidia-fabric-manager"),
        ("redhat", "580.159.04", "nvidia-fabricmanager"),
        ("suse", "595.45.04", "nvidia-fabricmanager"),
    ],
)
def test_the_fabric_managers_package_by_distribution_and_branch(host, family, version, name):
    host["os"]["family"] = family
    host["modules"]["installed"] = {KERNEL: installed(version)}
    found = subject.fabric_manager(with_manager(host, None))
    assert (found["package"], found["wanted"]) == (name, version)


def test_a_given_package_name_wins(host):
    found = subject.fabric_manager(with_manager(host, None), "nvidia-fabricmanager-580")
    assert found["package"] == "nvidia-fabricmanager-580"


@pytest.mark.parametrize(
    ("manager", "fits", "settled"),
    [
        (("580.159.04",), True, True),
        (("580.159.04", False), True, False),
        (("580.159.04", True, False), True, False),
        # The host shows no control groups: nobody knows, so nothing is done for ever.
        (("580.159.04", True, None), True, True),
        (("580.159.03",), False, False),
        ((None, False, False), False, False),
    ],
)
def test_whether_the_fabric_manager_is_as_it_should_be(host, manager, fits, settled):
    found = subject.fabric_manager(with_manager(host, *manager))
    assert (found["fits"], found["settled"], found["start"]) == (fits, settled, True)


def test_the_fabric_manager_follows_the_driver_that_boots_next(host):
    """It can't run before that boot, and is settled without."""
    host["modules"]["installed"] = {KERNEL: installed("595.45.04")}
    found = subject.fabric_manager(with_manager(host, "595.45.04", True, False))
    assert (found["wanted"], found["start"], found["settled"]) == ("595.45.04", False, True)
    assert not subject.fabric_manager(with_manager(host, "580.159.04"))["fits"]


def test_without_a_driver_nobody_knows_the_version(host):
    host["modules"]["installed"], host["nvidia"]["version"] = {}, None
    found = subject.fabric_manager(with_manager(host, "580.159.04"))
    assert (found["wanted"], found["fits"]) == (None, False)


def test_dma_buf_where_the_host_has_it(host):
    found = subject.peer_memory(host)
    assert (found["way"], found["problem"]) == ("dma_buf", None)
    assert found["why"] == (
        "NICs reach GPU memory by DMA-BUF (kernel 6.1.0-57-amd64, open driver)."
    )
    assert not any(found[key] for key in ("write", "load", "remove"))


def older_kernel(host):
    host["kernel"]["next"]["release"] = "4.18.0-553.el8"
    host["modules"]["installed"] = {"4.18.0-553.el8": installed("580.159.04")}


def proprietary(host):
    host["modules"]["installed"] = {KERNEL: installed("580.159.04", "NVIDIA")}


def switched_off(host):
    host["environment"]["NVSHMEM_IB_DISABLE_DMABUF"] = {"value": "1", "line": 1}


def unconfigured(host):
    host["kernel"]["config"]["DMA_SHARED_BUFFER"] = "n"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (older_kernel, "kernel 4.18.0-553.el8"),
        (proprietary, "the proprietary driver"),
        (switched_off, "NVSHMEM_IB_DISABLE_DMABUF is set"),
        (unconfigured, "CONFIG_DMA_SHARED_BUFFER is off"),
    ],
)
def test_the_module_where_it_has_not_and_why(host, change, reason):
    change(host)
    found = subject.peer_memory(host)
    assert (found["way"], found["problem"]) == ("nvidia_peermem", None)
    assert found["why"] == f"NICs reach GPU memory by nvidia_peermem (no DMA-BUF: {reason})."
    assert (found["write"], found["load"], found["remove"]) == (True, True, False)
    asked = subject.peer_memory(host, "dma_buf")
    assert reason in asked["problem"]


def test_a_kernel_without_the_module_is_a_problem(host):
    host["modules"]["installed"] = {KERNEL: installed("580.159.04", peermem=False)}
    found = subject.peer_memory(host, "nvidia_peermem")
    assert f"kernel {KERNEL} has no such module" in found["problem"]


def test_the_module_is_found_by_the_name_of_its_file(tmp_path):
    base = f"lib/modules/{KERNEL}"
    files = {f"{base}/modules.dep": "updates/dkms/nvidia-peermem.ko: updates/dkms/nvidia.ko\n"}
    write(tmp_path, {**kernel(), **files, "proc/sys/kernel/osrelease": KERNEL + "\n"})
    assert subject.peer_memory(facts.gather(str(tmp_path)), "nvidia_peermem")["problem"] is None


def test_what_is_there_is_left_alone(host):
    settled = copy.deepcopy(host)
    settled["nvidia"]["peermem"] = {"loaded": True, "at_boot": ["/etc/modules-load.d/theirs.conf"]}
    found = subject.peer_memory(settled, "nvidia_peermem")
    assert (found["write"], found["load"], found["remove"]) == (False, False, False)
    assert found["why"].endswith("by nvidia_peermem (by choice).")
    # A file of someone else's stays, also where DMA-BUF serves.
    assert not subject.peer_memory(settled)["remove"]


def test_our_file_goes_once_dma_buf_serves(host):
    host["nvidia"]["peermem"]["at_boot"] = [subject.PEERMEM_FILE]
    assert subject.peer_memory(host)["remove"]


def test_a_module_of_the_coming_driver_waits_for_the_boot(host):
    host["modules"]["installed"] = {KERNEL: installed("595.45.04")}
    assert not subject.peer_memory(host, "nvidia_peermem")["load"]


def test_files_that_load_it_at_boot_are_read(tmp_path):
    root = write(
        tmp_path,
        {
            "etc/modules-load.d/a.conf": "# nvidia-peermem\nnvidia\n",
            "etc/modules-load.d/b.conf": "nvidia-peermem\n",
            "etc/modules": "loop\nnvidia_peermem\n",
        },
    )
    found = facts.gather(root.root)["nvidia"]["peermem"]["at_boot"]
    assert found == ["/etc/modules-load.d/b.conf", "/etc/modules"]
