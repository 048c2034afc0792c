# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""RDMA devices: there, up, fast, addressed, near to their GPUs, and let into GPU memory."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List, Tuple

from ..intent import remote
from ..model import ERROR, WARNING, Evidence, Facts, Intent, rule
from ..peer_memory import dma_buf_obstacles

# Room for a 4096-byte RDMA message and its headers.
_ROCE_MTU = 4200
_PEERMEM_REFUSED = re.compile(
    r"(?:nvidia_peermem|nv_peer_mem): (?:disagrees about version of symbol|Unknown symbol)"
    r"|could not insert .nvidia_peermem"
)


def _mlx5(facts: Facts) -> List[Dict[str, Any]]:
    return [nic for nic in facts["nics"] if nic["driver"] == "mlx5_core"]


def _ports(facts: Facts) -> Iterator[Tuple[Dict[str, Any], Dict[str, Any], str]]:
    """NICs that GPUs use, with their ports and a name for messages."""
    near = {name for item in facts["affinity"] for name in item["nics"]}
    for nic in _mlx5(facts):
        if nic["name"] in near:
            for port in nic["ports"]:
                yield nic, port, f"/sys/class/infiniband/{nic['name']}/ports/{port['number']}"


def _roce(port: Dict[str, Any]) -> bool:
    return bool(port["link_layer"] == "Ethernet")


@rule(
    "EPD601",
    ERROR,
    "There is no mlx5 device",
    "IBGDA works with NVIDIA (Mellanox) NICs alone; nothing reaches another host.",
    "Load the NIC's driver (`modprobe mlx5_ib`) and look for it with `lspci -d 15b3:`. On other"
    " NICs"
    " (EFA, Broadcom, Intel) IBGDA is not possible.",
)
def no_mlx5(facts: Facts, intent: Intent) -> List[Evidence]:
    """The plugin takes over queues of mlx5 devices; those of other makers are skipped (`is not
    enumerated as an mlx5 device`).
    """
    if not remote(intent) or _mlx5(facts):
        return []
    seen = ", ".join(nic["name"] for nic in facts["nics"]) or "no RDMA device"
    return [Evidence("/sys/class/infiniband", seen, "a device of driver mlx5_core")]


@rule(
    "EPD602",
    ERROR,
    "The port of a GPU's NIC is down",
    "Ranks of that GPU cannot start, or crowd onto another NIC.",
    "Look at cable and switch port, then `ibstat`, `ip link set DEVICE up`; on InfiniBand the"
    " subnet"
    " manager too.",
)
def port_down(facts: Facts, intent: Intent) -> List[Evidence]:
    """State of the ports of those NICs that are nearest to a GPU."""
    if not remote(intent):
        return []
    return [
        Evidence(f"{where}/state", f"{port['state']} ({port['physical_state']})", "ACTIVE")
        for _nic, port, where in _ports(facts)
        if port["state"] != "ACTIVE"
    ]


@rule(
    "EPD603",
    WARNING,
    "A NIC's link is slower than its neighbours'",
    "The slowest link sets the pace of the whole group.",
    "Reseat or replace cable and module of {where}; check the switch port's speed.",
)
def slow_link(facts: Facts, intent: Intent) -> List[Evidence]:
    """Rates of the active ports that GPUs use, compared with the fastest of them."""
    rates = [
        (where, port["rate_gbps"])
        for _nic, port, where in _ports(facts)
        if port["state"] == "ACTIVE" and port["rate_gbps"]
    ]
    best = max((rate for _where, rate in rates), default=0)
    return [
        Evidence(f"{where}/rate", f"{rate:g} Gb/s", f"{best:g} Gb/s")
        for where, rate in rates
        if rate < best
    ]


@rule(
    "EPD604",
    ERROR,
    "A RoCE port has no RoCE v2 address",
    "Queue pairs cannot be connected: `ibv_modify_qp failed` with status 110 or 22.",
    "Give the network device an IPv4 address; the table fills itself. `rdma link` and"
    " `show_gids` show"
    " it.",
)
def no_roce_v2(facts: Facts, intent: Intent) -> List[Evidence]:
    """The port's address table (GIDs) holds no entry of type RoCE v2 besides link-local ones."""
    if not remote(intent):
        return []
    found = []
    for _nic, port, where in _ports(facts):
        routed = [
            gid
            for gid in port["gids"]
            if gid["type"] == "RoCE v2" and not gid["gid"].startswith("fe80")
        ]
        if _roce(port) and port["state"] == "ACTIVE" and not routed:
            kinds = ", ".join(sorted({str(gid["type"]) for gid in port["gids"]})) or "no entry"
            found.append(Evidence(f"{where}/gids", kinds, "RoCE v2 with a routable address"))
    return found


@rule(
    "EPD605",
    ERROR,
    "NVSHMEM_IB_GID_INDEX points to no RoCE v2 address",
    "Queue pairs cannot be connected: `ibv_modify_qp failed` with status 110 or 22.",
    "Set NVSHMEM_IB_GID_INDEX in {where} to {wanted}, or remove it: NVSHMEM finds one by itself.",
)
def wrong_gid_index(facts: Facts, intent: Intent) -> List[Evidence]:
    """The row differs from host to host and moves when addresses come and go."""
    item = facts["environment"].get("NVSHMEM_IB_GID_INDEX")
    if item is None or not item["value"].isdigit():
        return []
    index = int(item["value"])
    found = []
    for nic, port, _where in _ports(facts):
        good = [str(gid["index"]) for gid in port["gids"] if gid["type"] == "RoCE v2"]
        if _roce(port) and port["state"] == "ACTIVE" and str(index) not in good:
            kind = next((g["type"] for g in port["gids"] if g["index"] == index), "an empty row")
            found.append(
                Evidence(
                    f"/etc/environment:{item['line']}",
                    f"index {index} is {kind} on {nic['name']}",
                    " or ".join(good) or "unset",
                )
            )
    return found


@rule(
    "EPD606",
    WARNING,
    "The MTU of a RoCE device is small",
    "RDMA falls back to packets of 1024 or 2048 bytes: more packets, less bandwidth.",
    "Set the MTU of {where} to 9000 (or 4200), on the switches too.",
)
def small_mtu(facts: Facts, intent: Intent) -> List[Evidence]:
    """RDMA over Ethernet uses the largest power of two below the device's MTU, 4096 at most."""
    found = {}
    for nic, port, _where in _ports(facts):
        if _roce(port) and nic["mtu"] is not None and nic["mtu"] < _ROCE_MTU:
            device = ", ".join(nic["netdevs"])
            found[nic["name"]] = Evidence(device, f"MTU {nic['mtu']}", f"{_ROCE_MTU} or more")
    return list(found.values())


@rule(
    "EPD607",
    WARNING,
    "A GPU has no NIC near it",
    "Its messages cross the host bridge or the CPU interconnect: slower, and slower for all.",
    "Compare with `nvidia-smi topo -m`; in a virtual machine pass GPU and NIC through below one"
    " virtual switch. NVSHMEM_HCA_PE_MAPPING chooses NICs by hand.",
)
def far_nic(facts: Facts, intent: Intent) -> List[Evidence]:
    """The nearest NIC is beyond the GPU's root complex (NODE) or its NUMA node (SYS)."""
    if not remote(intent) or not facts["nics"]:
        return []
    return [
        Evidence(f"GPU {item['gpu']}", f"{item['nearness']} to {', '.join(item['nics'])}", "PIX")
        for item in facts["affinity"]
        if item["nearness"] in ("NODE", "SYS")
    ]


@rule(
    "EPD608",
    WARNING,
    "GPUs share a NIC while another one is idle",
    "Two GPUs get half of the bandwidth each.",
    "Set NVSHMEM_HCA_PE_MAPPING (with NVSHMEM_ENABLE_NIC_PE_MAPPING=1) so that every NIC serves"
    " as many"
    " GPUs.",
)
def shared_nic(facts: Facts, intent: Intent) -> List[Evidence]:
    """One NIC alone is nearest to several GPUs, and an mlx5 device with an active port to none."""
    only: Dict[str, List[str]] = {}
    for item in facts["affinity"]:
        if len(item["nics"]) == 1:
            only.setdefault(item["nics"][0], []).append(item["gpu"])
    used = {name for item in facts["affinity"] for name in item["nics"]}
    idle = [
        nic["name"]
        for nic in _mlx5(facts)
        if nic["name"] not in used and any(port["state"] == "ACTIVE" for port in nic["ports"])
    ]
    if not remote(intent) or not idle:
        return []
    return [
        Evidence(name, f"nearest to {', '.join(gpus)}; {', '.join(idle)} to none", "one GPU a NIC")
        for name, gpus in sorted(only.items())
        if len(gpus) > 1
    ]


@rule(
    "EPD609",
    ERROR,
    "NICs have no way into GPU memory",
    "NVSHMEM skips the transport: `neither nv_peer_mem, or nvidia_peermem detected`.",
    "Run role nvidia_driver, which loads nvidia-peermem now and at each boot; or use the open"
    " driver on a kernel since 5.12 (DMA-BUF).",
    role="nvidia_driver",
)
def no_peer_memory(facts: Facts, intent: Intent) -> List[Evidence]:
    """Either the module nvidia_peermem, or DMA-BUF: a kernel since 5.12 with DMA_SHARED_BUFFER, the
    open driver, and rdma-core.
    """
    loaded = set(facts["modules"]["loaded"])
    peermem = facts["nvidia"]["peermem"]["loaded"] or "nv_peer_mem" in loaded
    if not remote(intent) or peermem or not facts["nvidia"]["module_loaded"]:
        return []
    kernel, flavour = facts["kernel"]["release"], facts["nvidia"]["flavour"]
    reasons = dma_buf_obstacles(facts, kernel, flavour)
    if not reasons:
        return []
    seen = f"nvidia_peermem is not loaded, and no DMA-BUF: {', '.join(reasons)}"
    return [Evidence("/sys/module/nvidia_peermem", seen, "one of the two")]


@rule(
    "EPD610",
    ERROR,
    "The kernel refused to load nvidia_peermem",
    "Without DMA-BUF, NICs have no way into GPU memory.",
    "Install the NVIDIA driver again after DOCA-OFED (in this order: OFED, driver, gdrdrv).",
)
def peermem_refused(facts: Facts, intent: Intent) -> List[Evidence]:
    """It was built against another ib_core than the one that runs: OFED came after the driver."""
    if facts["nvidia"]["peermem"]["loaded"]:
        return []
    lines = [line.strip() for line in facts["kernel_log"] if _PEERMEM_REFUSED.search(line)]
    return [Evidence("dmesg", line, "a module that loads") for line in lines[:3]]


@rule(
    "EPD611",
    WARNING,
    "The old nv_peer_mem is loaded",
    "It does not know current drivers; registrations fail or the host crashes on unload.",
    "Remove package nvidia-peer-memory-dkms (nvidia-peer-memory) and load nvidia-peermem, which"
    " comes with the driver.",
)
def old_peer_memory(facts: Facts, intent: Intent) -> List[Evidence]:
    """Its place was taken by nvidia_peermem, which belongs to the driver."""
    if "nv_peer_mem" in facts["modules"]["loaded"]:
        return [Evidence("/proc/modules", "nv_peer_mem", "nvidia_peermem")]
    return []


@rule(
    "EPD612",
    WARNING,
    "A NIC runs on fewer PCIe lanes or a lower speed than it can",
    "It cannot reach its network rate.",
    "Reseat the card, look at the slot and at the BIOS's bifurcation: {where}.",
)
def narrow_nic(facts: Facts, intent: Intent) -> List[Evidence]:
    """Width and speed of the PCIe link against what the device could do."""
    found = []
    for nic in _mlx5(facts):
        pairs = (("link_width", "x{0}"), ("link_speed_gts", "{0:g} GT/s"))
        for key, text in pairs:
            now, best = nic[key], nic["max_" + key]
            if now and best and now < best:
                where = f"{nic['name']} ({nic['pci']})"
                found.append(Evidence(where, text.format(now), text.format(best)))
    return found


@rule(
    "EPD613",
    WARNING,
    "A NIC may not reorder its PCIe writes",
    "Writes into GPU memory wait for each other: less bandwidth.",
    "Set relaxed ordering in the BIOS and `mlxconfig -d {where} set PCI_WR_ORDERING=1`, then"
    " reset the"
    " firmware (`mlxfwreset`).",
)
def strict_ordering(facts: Facts, intent: Intent) -> List[Evidence]:
    """The bit Enable Relaxed Ordering of the device's PCIe control register, read as root."""
    if not remote(intent):
        return []
    return [
        Evidence(nic["pci"], "relaxed ordering is off", "on")
        for nic in _mlx5(facts)
        if nic["relaxed_ordering"] is False
    ]
