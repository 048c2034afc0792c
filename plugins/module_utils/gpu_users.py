# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Which processes have the NVIDIA driver open, and so would be hit by a reboot or a reload."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Dict, List, Set

if TYPE_CHECKING:
    from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.root import (
        HostRoot,
    )

_DEVICE = re.compile(r"^/dev/(nvidia\d+|nvidiactl|nvidia-uvm|nvidia-modeset|nvidia-caps/.*)$")
# The driver's own services: they hold the devices all the time and do no work on them.
SERVICES = ("nvidia-persistenced", "nv-fabricmanager", "nv-hostengine", "dcgm-exporter")
_COMMAND_BYTES = 15  # what the kernel keeps of a program's name in /proc/PID/comm


def find(host: HostRoot) -> List[Dict[str, Any]]:
    """``[{pid, command, devices}]`` of every process with a device of the driver open."""
    users = []
    for name in host.names("/proc"):
        if not name.isdigit():
            continue
        devices: Set[str] = set()
        for descriptor in host.names(f"/proc/{name}/fd"):
            try:
                target = os.readlink(host.path(f"/proc/{name}/fd/{descriptor}"))
            except OSError:
                continue  # closed meanwhile
            if _DEVICE.match(target):
                devices.add(target)
        if devices:
            command = host.line(f"/proc/{name}/comm") or "?"
            users.append({"pid": int(name), "command": command, "devices": sorted(devices)})
    return sorted(users, key=lambda user: int(user["pid"]))


def is_service(user: Dict[str, Any]) -> bool:
    """Whether the process is one of the driver's own services."""
    return user["command"] in {service[:_COMMAND_BYTES] for service in SERVICES}
