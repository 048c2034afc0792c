# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""The PCI bus: where a device sits, its link, what its configuration space says."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Dict, List, Optional

if TYPE_CHECKING:
    from .root import HostRoot

DEVICES = "/sys/bus/pci/devices"
NVIDIA_VENDOR = "0x10de"
_CAPABILITY_EXPRESS = 0x10
_EXTENDED_ACS = 0x0D
# Request redirect, completion redirect, upstream forwarding: what sends peer traffic upstream.
_ACS_REDIRECT = 0b11100
_RELAXED_ORDERING = 1 << 4


def place(host: HostRoot, address: str) -> Dict[str, Any]:
    """Where ``address`` sits and how its link runs.

    ``path`` holds the PCI addresses from the root port down, the device last, after the root bus.
    ``relaxed_ordering`` is null without root: the kernel shows others 64 bytes of the space only.
    """
    directory = f"{DEVICES}/{address}"
    parts = host.target(directory).split("/")
    start = next((i for i, part in enumerate(parts) if part.startswith("pci")), None)
    driver = host.target(directory + "/driver").rsplit("/", 1)[-1]
    space = host.data(directory + "/config", 4096) or b""
    control = _device_control(space)
    return {
        "path": parts[start:] if start is not None else [],
        "numa_node": integer(host.line(directory + "/numa_node")),
        "driver": driver if driver != "driver" else None,
        "link_width": integer(host.line(directory + "/current_link_width")),
        "max_link_width": integer(host.line(directory + "/max_link_width")),
        "link_speed_gts": _speed(host.line(directory + "/current_link_speed")),
        "max_link_speed_gts": _speed(host.line(directory + "/max_link_speed")),
        "iommu_type": host.line(directory + "/iommu_group/type"),
        "relaxed_ordering": None if control is None else bool(control & _RELAXED_ORDERING),
    }


def redirecting_bridges(host: HostRoot, paths: List[List[str]]) -> Optional[List[str]]:
    """Bridges on ``paths`` whose access control services redirect; null when not readable."""
    bridges = sorted({address for path in paths for address in path[1:-1]})
    found = []
    for address in bridges:
        space = host.data(f"{DEVICES}/{address}/config", 4096) or b""
        if len(space) <= 256:
            return None
        control = _acs_control(space)
        if control is not None and control & _ACS_REDIRECT:
            found.append(address)
    return found


def nvswitches(host: HostRoot) -> int:
    """How many NVSwitches sit on the bus: bridges of NVIDIA (class 0680)."""
    return sum(
        1
        for address in host.names(DEVICES)
        if (host.line(f"{DEVICES}/{address}/vendor") or "").lower() == NVIDIA_VENDOR
        and (host.line(f"{DEVICES}/{address}/class") or "").lower().startswith("0x0680")
    )


def nearness(first: List[str], second: List[str], first_node: Any, second_node: Any) -> str:
    """How far two devices are apart, in the words of ``nvidia-smi topo``.

    PIX: below one switch. PXB: below one root port. PHB: one root complex. NODE: one NUMA node.
    SYS: two NUMA nodes. "?" when the bus is hidden.
    """
    if not first or not second:
        return "?"
    common = 0
    for one, other in zip(first, second):
        if one != other:
            break
        common += 1
    if common >= 3 and len(first) - common <= 2 and len(second) - common <= 2:
        return "PIX"
    if common >= 2:
        return "PXB"
    if common == 1:
        return "PHB"
    return "NODE" if first_node is not None and first_node == second_node else "SYS"


def _device_control(space: bytes) -> Optional[int]:
    """The Device Control register of the PCI Express capability."""
    position = space[0x34] if len(space) > 0x40 else 0
    for _hop in range(48):
        if position < 0x40 or position + 10 > len(space):
            return None
        if space[position] == _CAPABILITY_EXPRESS:
            return int(struct.unpack_from("<H", space, position + 8)[0])
        position = space[position + 1]
    return None


def _acs_control(space: bytes) -> Optional[int]:
    """The control register of the extended capability Access Control Services."""
    position = 0x100
    for _hop in range(96):
        if position < 0x100 or position + 8 > len(space):
            return None
        header = struct.unpack_from("<I", space, position)[0]
        if header & 0xFFFF == _EXTENDED_ACS:
            return int(struct.unpack_from("<H", space, position + 6)[0])
        position = header >> 20
    return None


def integer(text: Optional[str]) -> Optional[int]:
    """A whole number, or None."""
    try:
        return int((text or "").strip())
    except ValueError:
        return None


def _speed(text: Optional[str]) -> Optional[float]:
    try:
        return float((text or "").split(" ")[0])
    except ValueError:
        return None
