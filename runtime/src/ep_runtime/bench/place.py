"""Where a rank runs, for people who have to find the part: its GPU and the NICs nearest to it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ep_runtime.doctor.host import nics, procfs
from ep_runtime.doctor.host.root import HostRoot

if TYPE_CHECKING:
    from collections.abc import Mapping

_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@dataclass(frozen=True)
class Place:
    """``device`` as torch calls it; ``gpu``: its PCI address, "" on the CPU; ``nics``: names."""

    device: str
    device_name: str
    gpu: str
    nics: tuple[str, ...]


def place_of(
    device: torch.device, environment: Mapping[str, str] = os.environ, root: str = "/"
) -> Place:
    """Look up this process's parts below ``root``.

    RDMA devices nearest to the GPU where there are any, else the interface that the ranks were
    told to talk over, if they were.
    """
    told = next((environment[name] for name in _INTERFACES if environment.get(name)), "")
    interfaces = tuple(told.split(",")) if told else ()
    if device.type != "cuda":
        return Place(str(device), "cpu", "", interfaces)
    properties = torch.cuda.get_device_properties(device)
    address = _pci_address(properties)
    return Place(str(device), properties.name, address, _nearest(address, root) or interfaces)


def _pci_address(properties: object) -> str:
    """Write the address as sysfs does: 0000:1b:00.0. "" with a torch that does not know it."""
    domain, bus, device = (
        getattr(properties, f"pci_{part}_id", -1) for part in ("domain", "bus", "device")
    )
    return f"{domain:04x}:{bus:02x}:{device:02x}.0" if min(domain, bus, device) >= 0 else ""


def _nearest(address: str, root: str) -> tuple[str, ...]:
    host = HostRoot(root)
    for item in nics.affinity(procfs.gpus(host), nics.nics(host)):
        if str(item["gpu"]).lower() == address:
            return tuple(item["nics"])
    return ()
