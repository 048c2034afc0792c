# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Which priorities of a RoCE device are lossless (PFC), and which one a packet gets by its DSCP."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Dict, List

from . import pci

if TYPE_CHECKING:
    from .commands import Programs
    from .root import HostRoot

_CLASS = "/sys/class/infiniband"
_PFC = re.compile(r"^prio-pfc ((?:\d:(?:on|off)\s*)+)", re.MULTILINE)
_DSCP = re.compile(r"^dscp-prio ((?:\d+:\d\s*)+)", re.MULTILINE)
_GLOBAL_CLASS = re.compile(r"(\d+)\s*$")


def programs(host: HostRoot) -> Dict[str, List[str]]:
    """What iproute2's dcb is asked, for each network device of a RoCE port."""
    asked = {}
    for name in host.names(_CLASS):
        base = f"{_CLASS}/{name}"
        layers = [host.line(path) for path in host.glob(base + "/ports/*/link_layer")]
        for netdev in host.names(base + "/device/net") if "Ethernet" in layers else ():
            asked[f"dcb-pfc-{netdev}"] = ["dcb", "pfc", "show", "dev", netdev]
            asked[f"dcb-dscp-{netdev}"] = ["dcb", "-N", "app", "show", "dev", netdev, "dscp-prio"]
    return asked


def facts(host: HostRoot, answers: Programs, nic: Dict[str, Any]) -> Dict[str, Any]:
    """``lossless`` priorities and ``dscp_priority`` of the RDMA device's first network device.

    Both are null where dcb does not say. Without an entry in the second, priorities come from the
    VLAN tag. ``traffic_class`` is the one that the driver gives to all packets, null for none.
    """
    netdev = next(iter(nic["netdevs"]), None)
    pfc = _PFC.search(answers.output(f"dcb-pfc-{netdev}") or "")
    text = answers.output(f"dcb-dscp-{netdev}")
    dscp = _DSCP.search(text or "")
    pairs = [pair.split(":") for pair in dscp.group(1).split()] if dscp else []
    given = _GLOBAL_CLASS.search(host.line(f"{_CLASS}/{nic['name']}/tc/1/traffic_class") or "")
    return {
        "lossless": None
        if pfc is None
        else [int(pair[0]) for pair in pfc.group(1).split() if pair.endswith(":on")],
        "dscp_priority": None if text is None else {number: int(prio) for number, prio in pairs},
        "traffic_class": pci.integer(given.group(1)) if given else None,
    }
