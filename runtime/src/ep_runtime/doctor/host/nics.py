# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""RDMA devices: ports, links, address tables, and which of them is near to which GPU."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Dict, List

from . import pci

if TYPE_CHECKING:
    from .root import HostRoot

CLASS = "/sys/class/infiniband"
INFINIBAND, ETHERNET = "InfiniBand", "Ethernet"
_EMPTY_GID = re.compile(r"^(fe80:)?[0:]*$")
_MAX_GIDS = 256


def nics(host: HostRoot) -> List[Dict[str, Any]]:
    """One entry per RDMA device, with the fields of ``pci.place``.

    A port has its ``number``, ``state`` and ``physical_state`` as the kernel words them,
    ``rate_gbps``, ``link_layer`` and the used entries of its ``gids``.
    """
    found = []
    for name in host.names(CLASS):
        base = f"{CLASS}/{name}"
        address = host.target(base + "/device").rsplit("/", 1)[-1]
        netdevs = host.names(base + "/device/net")
        mtus = [pci.integer(host.line(f"/sys/class/net/{netdev}/mtu")) for netdev in netdevs]
        found.append(
            {
                "name": name,
                "pci": address if ":" in address else None,
                **pci.place(host, address),
                "firmware": host.line(base + "/fw_ver"),
                "board": host.line(base + "/board_id"),
                "netdevs": netdevs,
                "mtu": min((mtu for mtu in mtus if mtu is not None), default=None),
                "ports": [_port(host, base, number) for number in host.names(base + "/ports")],
            }
        )
    return found


def _port(host: HostRoot, base: str, number: str) -> Dict[str, Any]:
    directory = f"{base}/ports/{number}"
    rate = re.match(r"^\s*(\d+(?:\.\d+)?)\s*Gb/sec", host.line(directory + "/rate") or "")
    return {
        "number": pci.integer(number),
        "state": _words(host.line(directory + "/state")),
        "physical_state": _words(host.line(directory + "/phys_state")),
        "rate_gbps": float(rate.group(1)) if rate else None,
        "link_layer": host.line(directory + "/link_layer"),
        "gids": _gids(host, directory),
    }


def _words(text: Any) -> Any:
    """``4: ACTIVE`` without its number."""
    return text.partition(":")[2].strip() or text if isinstance(text, str) else None


def _gids(host: HostRoot, directory: str) -> List[Dict[str, Any]]:
    indices = sorted(int(name) for name in host.names(directory + "/gids") if name.isdigit())
    found = []
    for index in indices[:_MAX_GIDS]:
        gid = host.line(f"{directory}/gids/{index}") or ""
        if _EMPTY_GID.match(gid):
            continue
        found.append(
            {
                "index": index,
                "gid": gid,
                "type": host.line(f"{directory}/gid_attrs/types/{index}"),
                "netdev": host.line(f"{directory}/gid_attrs/ndevs/{index}"),
            }
        )
    return found


def affinity(gpus: List[Dict[str, Any]], found: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """For each GPU its nearest NICs: ``gpu``, ``nics`` and ``nearness``."""
    order = ("PIX", "PXB", "PHB", "NODE", "SYS", "?")
    nearest = []
    for gpu in gpus:
        by_nearness: Dict[str, List[str]] = {}
        for nic in found:
            how = pci.nearness(gpu["path"], nic["path"], gpu["numa_node"], nic["numa_node"])
            by_nearness.setdefault(how, []).append(nic["name"])
        best = next((how for how in order if how in by_nearness), None)
        nearest.append(
            {"gpu": gpu["pci"], "nics": by_nearness.get(best or "", []), "nearness": best}
        )
    return nearest
