# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""RoCE without loss: priority flow control, and jobs' packets in a priority that has it."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List, Tuple

from ..intent import remote
from ..model import WARNING, Evidence, Facts, Intent, rule

_VARIABLE = "NVSHMEM_IB_TRAFFIC_CLASS"
_SETTING = re.compile(rf"^{_VARIABLE}=(\d+)\s*$", re.MULTILINE)


def _known(facts: Facts, intent: Intent) -> Iterator[Tuple[Dict[str, Any], str]]:
    """Devices whose flow control is known, with the name of their network device."""
    for nic in facts["nics"] if remote(intent) else ():
        if nic["driver"] == "mlx5_core" and nic["lossless"] is not None:
            yield nic, nic["netdevs"][0]


def _traffic_class(facts: Facts) -> int:
    """What jobs ask for: by the role's file for them, else by the variables of every login."""
    found = _SETTING.search(facts["nvshmem_current"]["environment"] or "")
    text = found.group(1) if found else facts["environment"].get(_VARIABLE, {}).get("value", "0")
    return int(text) if text.isdigit() else 0


@rule(
    "EPD614",
    WARNING,
    "No priority of a RoCE device is lossless",
    "Under load packets are dropped, and RDMA sends everything after a lost one again.",
    "Switch PFC on for the priority of the jobs' packets, on the switches too: `mlnx_qos -i {where}"
    " --pfc 0,0,0,1,0,0,0,0 --trust dscp`, by a unit of its own, for it is lost at a reboot. On a"
    " fabric that is lossy by choice, accept this finding.",
)
def no_flow_control(facts: Facts, intent: Intent) -> List[Evidence]:
    """`dcb pfc show` says that priority flow control is off for all eight priorities."""
    return [
        Evidence(netdev, "PFC is off for all priorities", "on for one")
        for nic, netdev in _known(facts, intent)
        if not nic["lossless"]
    ]


@rule(
    "EPD615",
    WARNING,
    "Jobs' packets get a priority of a RoCE device that is not lossless",
    "Flow control protects a priority that nothing uses; the jobs' packets are dropped under load.",
    "Give IB_TRAFFIC_CLASS in nvshmem_settings, four times a DSCP that leads to a lossless priority"
    " (106 leads to 3 by the usual table), or switch PFC on for the priority that they get.",
)
def unprotected(facts: Facts, intent: Intent) -> List[Evidence]:
    """The traffic class's upper six bits are the DSCP, which the device's table turns into a
    priority; where it has no table, packets without a VLAN tag get priority 0.
    """
    found = []
    for nic, netdev in _known(facts, intent):
        given = nic["traffic_class"]
        asked = _traffic_class(facts) if given is None else given
        table = nic["dscp_priority"] or {}
        priority = table.get(str(asked >> 2), 0)
        if nic["lossless"] and priority not in nic["lossless"]:
            lossless = ", ".join(map(str, nic["lossless"]))
            seen = f"traffic class {asked} gets priority {priority}"
            found.append(Evidence(netdev, seen, f"priority {lossless}, which is lossless"))
    return found
