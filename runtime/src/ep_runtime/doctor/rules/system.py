# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Limits, memory, PCI and the container around a run."""

from __future__ import annotations

from typing import Any, List

from ..host.limits import UNLIMITED
from ..intent import remote
from ..model import ERROR, INFO, WARNING, Evidence, Facts, Intent, rule


def _limited(value: Any) -> bool:
    return value is not None and value != UNLIMITED


@rule(
    "EPD801",
    ERROR,
    "Processes may not lock the memory that RDMA needs",
    "Registering memory with the NIC fails: `ibv_reg_mr ... Cannot allocate memory`.",
    "Set host_tuning_memlock: true and run role host_tuning, then log in anew (by hand: `* -"
    " memlock"
    " unlimited` in a file of /etc/security/limits.d, DefaultLimitMEMLOCK=infinity in one of"
    " /etc/systemd/system.conf.d). Containers: `--ulimit memlock=-1`.",
)
def memlock(facts: Facts, intent: Intent) -> List[Evidence]:
    """The limit of the session that read the facts, where it is not root's privilege to ignore it
    (CAP_IPC_LOCK).
    """
    session = facts["limits"]["memlock"]["session"]
    if not remote(intent) or not _limited(session) or facts["container"]["ipc_lock"] is not False:
        return []
    return [Evidence("/proc/self/limits", f"{session} bytes", UNLIMITED)]


@rule(
    "EPD802",
    WARNING,
    "Ordinary users may not lock the memory that RDMA needs",
    "Runs work as root and fail for everyone else: `ibv_reg_mr ... Cannot allocate memory`.",
    "Set host_tuning_memlock: true and run role host_tuning; by hand `* - memlock unlimited` in"
    " a file of"
    " /etc/security/limits.d and DefaultLimitMEMLOCK=infinity in one of"
    " /etc/systemd/system.conf.d.",
)
def memlock_of_users(facts: Facts, intent: Intent) -> List[Evidence]:
    """PAM's limits count for logins, systemd's for its units and for job schedulers; neither
    inherits from the other.
    """
    limits = facts["limits"]["memlock"]
    if not remote(intent) or facts["container"]["inside"]:
        return []
    found = []
    for where, key in (
        ("/etc/security/limits.conf", "pam"),
        ("/etc/systemd/system.conf", "systemd"),
    ):
        if limits[key] != UNLIMITED:
            seen = "no line about memlock" if limits[key] is None else f"{limits[key]} bytes"
            found.append(Evidence(where, seen, UNLIMITED))
    return found


@rule(
    "EPD803",
    WARNING,
    "The kernel balances memory between NUMA nodes",
    "Pages of running ranks are moved: single calls take 16 to 31 ms longer.",
    "Set host_tuning_numa_balancing_off: true and run role host_tuning; by hand `sysctl -w"
    " kernel.numa_balancing=0`, and the same in a file of /etc/sysctl.d.",
)
def numa_balancing(facts: Facts, intent: Intent) -> List[Evidence]:
    """Automatic NUMA balancing unmaps pages to see who uses them."""
    value = facts["limits"]["numa_balancing"]
    if not value:
        return []
    return [Evidence("/proc/sys/kernel/numa_balancing", str(value), "0")]


@rule(
    "EPD804",
    WARNING,
    "PCIe switches send traffic between GPU and NIC through the CPU",
    "Bandwidth is halved, or transfers hang; no error is shown.",
    "On bare metal: `setpci -s {where} ECAP_ACS+0x6.w=0000` for each bridge, from a systemd unit"
    " at each"
    " boot (the setting is lost), or in the BIOS. In virtual machines it must stay.",
)
def acs(facts: Facts, intent: Intent) -> List[Evidence]:
    """Access Control Services redirect requests upward on a bridge above a GPU or NIC (the control
    bits of its extended capability, read as root).
    """
    bridges = facts["pci"]["redirecting_bridges"]
    if not remote(intent) or not bridges:
        return []
    return [Evidence(bridge, "ACS redirects", "no redirection") for bridge in bridges]


@rule(
    "EPD805",
    WARNING,
    "The IOMMU translates the addresses of GPUs and NICs",
    "Every transfer between them is looked up: less bandwidth, more latency.",
    "Put iommu=pt on the kernel's command line (GRUB_CMDLINE_LINUX in /etc/default/grub), run"
    " `update-grub` or `grub2-mkconfig`, and reboot.",
)
def iommu(facts: Facts, intent: Intent) -> List[Evidence]:
    """The device's IOMMU group is of type DMA or DMA-FQ; with iommu=pt it is `identity`."""
    if not remote(intent):
        return []
    return [
        Evidence(f"/sys/bus/pci/devices/{device['pci']}/iommu_group/type", kind, "identity")
        for device in (*facts["nvidia"]["gpus"], *facts["nics"])
        for kind in [device["iommu_type"]]
        if kind in ("DMA", "DMA-FQ")
    ]


@rule(
    "EPD806",
    ERROR,
    "The container has no RDMA device",
    "NVSHMEM finds no device, or cannot open it.",
    "Start it with `--device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1`; in"
    " Kubernetes with"
    " the RDMA device plugin.",
)
def container_without_devices(facts: Facts, intent: Intent) -> List[Evidence]:
    """Inside a container, RDMA devices under /sys and no /dev/infiniband/uverbs*."""
    container = facts["container"]
    if not remote(intent) or not container["inside"] or container["uverbs"] or not facts["nics"]:
        return []
    return [
        Evidence("/dev/infiniband", f"empty in this {container['inside']} container", "uverbs0")
    ]


@rule(
    "EPD807",
    WARNING,
    "The container may not lock memory",
    "Registering memory fails, and NVSHMEM may fail to map the NIC's doorbell"
    " (`cannot allocate mlx5dv_devx_uar`).",
    "Start it with `--cap-add=IPC_LOCK` (or privileged).",
)
def container_without_capability(facts: Facts, intent: Intent) -> List[Evidence]:
    """CAP_IPC_LOCK is not among the container's capabilities, whatever the limit says."""
    container = facts["container"]
    if not remote(intent) or not container["inside"] or container["ipc_lock"] is not False:
        return []
    return [Evidence("/proc/self/status", "no CAP_IPC_LOCK", "CAP_IPC_LOCK")]


@rule(
    "EPD808",
    INFO,
    "Some of the host could not be read",
    "What these files and programs would say was not checked.",
    "Read the host as root (epfleet_become: true, or `sudo ep-doctor`).",
)
def unread(facts: Facts, intent: Intent) -> List[Evidence]:
    """Files that are there and refused, programs that gave no answer."""
    found = [Evidence(name, "not readable", None) for name in facts["unread"]]
    if facts["pci"]["redirecting_bridges"] is None and remote(intent):
        found.append(Evidence("PCI configuration space", "only its first 64 bytes", None))
    return found
