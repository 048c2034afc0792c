# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""What must be the same on all hosts, and is not."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

from ..intent import remote
from ..model import ERROR, INFO, WARNING, Evidence, Facts, Intent, fleet_rule

Fleet = Dict[str, Facts]


def _differing(
    fleet: Fleet, where: str, value: Callable[[Facts], Any]
) -> Dict[str, List[Evidence]]:
    """Evidence for the hosts that have another value than most; null values do not count."""
    values: Dict[str, List[str]] = {}
    for host, facts in fleet.items():
        seen = value(facts)
        if seen is not None:
            values.setdefault(str(seen), []).append(host)
    if len(values) < 2:
        return {}
    # Most hosts; of equally many the higher value, so that the answer does not depend on the order.
    common = max(values, key=lambda item: (len(values[item]), item))
    return {
        host: [
            Evidence(where, seen, f"{common}, as on {len(values[common])} of {len(fleet)} hosts")
        ]
        for seen, hosts in values.items()
        if seen != common
        for host in hosts
    }


@fleet_rule(
    "EPD901",
    WARNING,
    "Driver versions differ in the fleet",
    "Hosts of one run behave differently; gdrdrv and the fabric manager must follow each.",
    "Bring these hosts to the driver of the others: {wanted}.",
)
def driver(fleet: Fleet, intent: Intent) -> Dict[str, List[Evidence]]:
    """Loaded driver versions, compared with the one that most hosts have."""
    return _differing(
        fleet, "/proc/driver/nvidia/version", lambda facts: facts["nvidia"]["version"]
    )


def _nvshmem(facts: Facts) -> Any:
    loaded = facts["nvshmem_loaded"]["path"]
    versions = [copy["version"] for copy in facts["nvshmem"] if copy["library"] == loaded]
    return next(iter(versions), None)


@fleet_rule(
    "EPD902",
    ERROR,
    "NVSHMEM versions differ in the fleet",
    "Hosts wait for each other for ever at the start, or exchange what the other does not"
    " understand.",
    "Run role nvshmem over all hosts with one nvshmem_version.",
)
def nvshmem(fleet: Fleet, intent: Intent) -> Dict[str, List[Evidence]]:
    """The copy that a process of the runtime's environment loads."""
    return _differing(fleet, "libnvshmem_host.so.3", _nvshmem)


@fleet_rule(
    "EPD903",
    WARNING,
    "NIC firmware differs in the fleet",
    "Congestion control and address resolution differ; slow pairs of hosts are hard to find.",
    "Flash the firmware of the others: {wanted}.",
)
def firmware(fleet: Fleet, intent: Intent) -> Dict[str, List[Evidence]]:
    """Firmware of devices with the same board, compared with what most hosts have."""
    boards = sorted(
        {nic["board"] for facts in fleet.values() for nic in facts["nics"] if nic["board"]}
    )
    found: Dict[str, List[Evidence]] = {}
    for board in boards:
        differing = _differing(fleet, f"firmware of {board}", lambda facts: _firmware(facts, board))  # noqa: B023 - called at once
        for host, evidence in differing.items():
            found.setdefault(host, []).extend(evidence)
    return found


def _firmware(facts: Facts, board: str) -> Any:
    versions = {nic["firmware"] for nic in facts["nics"] if nic["board"] == board}
    return ", ".join(sorted(filter(None, versions))) or None


@fleet_rule(
    "EPD904",
    INFO,
    "Kernels differ in the fleet",
    "Modules are built for each of them; timing may differ.",
    "Boot the same kernel everywhere: {wanted}.",
)
def kernel(fleet: Fleet, intent: Intent) -> Dict[str, List[Evidence]]:
    """Running kernels, compared with the one that most hosts run."""
    return _differing(fleet, "uname -r", lambda facts: facts["kernel"]["release"])


@fleet_rule(
    "EPD905",
    ERROR,
    "torch's CUDA majors differ in the fleet",
    "One wheel cannot serve both, and ranks do not meet.",
    "Install one torch on all hosts (variable ep_runtime_torch).",
)
def cuda(fleet: Fleet, intent: Intent) -> Dict[str, List[Evidence]]:
    """The CUDA that the environment's torch was built with."""
    return _differing(
        fleet,
        "torch/version.py",
        lambda facts: (
            facts["runtime"]["torch_cuda"] and facts["runtime"]["torch_cuda"].split(".")[0]
        ),
    )


@fleet_rule(
    "EPD906",
    WARNING,
    "Hosts have different GPUs",
    "A run needs the same number of ranks on each host, and goes at the pace of the slowest GPU.",
    "Put these hosts into a fleet of their own, or look for the missing GPU: {seen}.",
)
def gpus(fleet: Fleet, intent: Intent) -> Dict[str, List[Evidence]]:
    """Number and PCI device of the GPUs."""

    def describe(facts: Facts) -> Any:
        devices = sorted({str(gpu["device"]) for gpu in facts["nvidia"]["gpus"]})
        return f"{facts['nvidia']['gpu_count']} x {', '.join(devices)}"

    return _differing(fleet, "/sys/bus/pci/devices", describe)


@fleet_rule(
    "EPD907",
    ERROR,
    "InfiniBand and RoCE are mixed in the fleet",
    "Hosts on different networks cannot reach each other by RDMA.",
    "Choose hosts on one network, or set the ports' link type (`mlxconfig set LINK_TYPE_P1`).",
)
def link_layer(fleet: Fleet, intent: Intent) -> Dict[str, List[Evidence]]:
    """Link layer of the active ports nearest to GPUs."""

    def layers(facts: Facts) -> Any:
        near = {name for item in facts["affinity"] for name in item["nics"]}
        ports = [p for nic in facts["nics"] if nic["name"] in near for p in nic["ports"]]
        return (
            ", ".join(sorted({str(p["link_layer"]) for p in ports if p["state"] == "ACTIVE"}))
            or None
        )

    if not remote(intent):
        return {}
    return _differing(fleet, "/sys/class/infiniband", layers)


@fleet_rule(
    "EPD908",
    ERROR,
    "Versions of the runtime differ in the fleet",
    "Ranks lay out memory differently: wrong results or a hang.",
    "Run role ep_runtime over all hosts.",
)
def runtime(fleet: Fleet, intent: Intent) -> Dict[str, List[Evidence]]:
    """The wheel ep-runtime in the environment."""
    return _differing(fleet, "ep_runtime", lambda facts: facts["runtime"]["ep_runtime"])


@fleet_rule(
    "EPD909",
    WARNING,
    "The row of the RoCE v2 address differs between hosts",
    "One NVSHMEM_IB_GID_INDEX for all is wrong on some.",
    "Leave NVSHMEM_IB_GID_INDEX unset, or set it for each host: {seen} here.",
)
def gid_index(fleet: Fleet, intent: Intent) -> Dict[str, List[Evidence]]:
    """First routable RoCE v2 row of the NICs, where the environment names a row at all."""
    if not any("NVSHMEM_IB_GID_INDEX" in facts["environment"] for facts in fleet.values()):
        return {}

    def row(facts: Facts) -> Any:
        rows = {
            gid["index"]
            for nic in facts["nics"]
            for port in nic["ports"]
            for gid in port["gids"]
            if gid["type"] == "RoCE v2" and not gid["gid"].startswith("fe80")
        }
        return min(rows) if rows else None

    return _differing(fleet, "GID index", row)


@fleet_rule(
    "EPD910",
    WARNING,
    "The NIC's driver differs in the fleet",
    "Some hosts have DOCA-OFED and some the kernel's own driver, or another release of it:"
    " devices have"
    " other names, and other features.",
    "Install the same DOCA-OFED on all hosts, or on none: {wanted}.",
)
def nic_driver(fleet: Fleet, intent: Intent) -> Dict[str, List[Evidence]]:
    """The version of mlx5_core; the kernel's own driver tells none."""

    def version(facts: Facts) -> Any:
        module = facts["mlx5_core"]
        return (module["version"] or "the kernel's own") if module["loaded"] else None

    return _differing(fleet, "/sys/module/mlx5_core/version", version)
