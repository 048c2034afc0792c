# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""What belongs to the driver and must fit it: the fabric manager, and the way into GPU memory."""

from __future__ import annotations

from typing import Any, Dict, Optional

from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.peer_memory import (
    dma_buf_obstacles,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.rules.kernels import (
    will_boot,
)

PEERMEM_FILE = "/etc/modules-load.d/epfleet-nvidia-peermem.conf"
# The branch since which the fabric manager's package carries no branch in its name.
_ONE_NAME = 580


def coming_driver(facts: Dict[str, Any]) -> Optional[str]:
    """Version of the driver that the kernel that boots next has; None where it has none."""
    version: Optional[str] = _modules(facts).get("nvidia", {}).get("version")
    return version


def fabric_manager(facts: Dict[str, Any], package: str = "") -> Dict[str, Any]:
    """The fabric manager that a host with NVSwitches needs, and whether it is as it should be.

    ``wanted`` is the version of the driver that boots next, else of the loaded one; null without a
    driver. ``fits``: that version is installed. ``start``: the loaded driver is of that version,
    so that the manager can run now. ``settled``: nothing is to be done. ``package`` is the name
    given, else the usual one.
    """
    loaded, fabric = facts["nvidia"]["version"], facts["fabric"]
    wanted = coming_driver(facts) or loaded
    fits = wanted is not None and fabric["version"] == wanted
    start = loaded is not None and loaded == wanted
    return {
        "package": package or _fabric_manager_package(facts["os"]["family"], wanted),
        "wanted": wanted,
        "installed": fabric["version"],
        "fits": fits,
        "start": start,
        "settled": fits and fabric["enabled"] and (fabric["active"] is not False or not start),
    }


def peer_memory(facts: Dict[str, Any], choice: str = "auto") -> Dict[str, Any]:
    """How NICs reach GPU memory: ``way`` is ``dma_buf`` or ``nvidia_peermem``, ``why`` a sentence.

    ``problem`` is a sentence where that way is not open on this host, else null. ``write``: the
    file for the next boots is missing; ``load``: the module is to be loaded now; ``remove``: our
    file is there and no longer needed.
    """
    release, modules, nvidia = will_boot(facts), _modules(facts), facts["nvidia"]
    licence = modules.get("nvidia", {}).get("license")
    flavour = nvidia["flavour"]
    if licence:
        flavour = "proprietary" if licence == "NVIDIA" else "open"
    obstacles = dma_buf_obstacles(facts, release, flavour)
    way = ("nvidia_peermem" if obstacles else "dma_buf") if choice == "auto" else choice
    problem = None
    if way == "nvidia_peermem":
        reason = f"no DMA-BUF: {', '.join(obstacles)}" if obstacles else "by choice"
        why = f"NICs reach GPU memory by nvidia_peermem ({reason})."
        if "nvidia_peermem" not in modules:
            problem = (
                f"NICs are to reach GPU memory by nvidia_peermem, and kernel {release} has no such"
                " module; install the NVIDIA driver again after the NIC's (DOCA-OFED, or the"
                " kernel's ib_core with its headers), which it is built against."
            )
    else:
        why = f"NICs reach GPU memory by DMA-BUF (kernel {release}, {flavour or 'unknown'} driver)."
        if obstacles:
            problem = (
                "nvidia_driver_peer_memory is dma_buf, and this host has no DMA-BUF for GPU memory"
                f" ({', '.join(obstacles)}); set it to auto."
            )
    peermem = nvidia["peermem"]
    needed = way == "nvidia_peermem"
    same = coming_driver(facts) in (None, nvidia["version"])
    return {
        "way": way,
        "why": why,
        "problem": problem,
        "write": needed and not peermem["at_boot"],
        "load": needed and nvidia["module_loaded"] and not peermem["loaded"] and same,
        "remove": not needed and PEERMEM_FILE in peermem["at_boot"],
    }


def _modules(facts: Dict[str, Any]) -> Dict[str, Any]:
    modules: Dict[str, Any] = facts["modules"]["installed"].get(will_boot(facts), {})
    return modules


def _fabric_manager_package(family: Optional[str], version: Optional[str]) -> str:
    branch = int(version.split(".")[0]) if version else _ONE_NAME
    if branch >= _ONE_NAME:
        return "nvidia-fabricmanager"
    return f"nvidia-fabricmanager-{branch}" if family == "debian" else "nvidia-fabric-manager"
