# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""NVSwitches, and the fabric manager that must run where they are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Dict, Optional

from . import pci

if TYPE_CHECKING:
    from .commands import Programs
    from .root import HostRoot

_UNIT = "nvidia-fabricmanager.service"
_DPKG_STATUS = "/var/lib/dpkg/status"
_MAX_STATUS_BYTES = 32 * 1024 * 1024
_PACKAGE = re.compile(r"^nvidia-fabric-?manager(?:-\d+)?$")
_RPM = re.compile(r"^nvidia-fabric-?manager ([\d.]+)$", re.MULTILINE)


def facts(host: HostRoot, programs: Programs) -> Dict[str, Any]:
    """``nvswitches`` on the bus; the manager's installed ``version``, and whether it is active.

    ``active`` is null where the host shows no control groups of systemd.
    """
    active: Optional[bool] = None
    if host.exists("/sys/fs/cgroup/system.slice"):
        active = bool(host.line(f"/sys/fs/cgroup/system.slice/{_UNIT}/cgroup.procs"))
    enabled = bool(host.glob("/etc/systemd/system/*.wants/" + _UNIT))
    return {
        "nvswitches": pci.nvswitches(host),
        "version": _version(host, programs),
        "enabled": enabled,
        "active": active,
    }


def _version(host: HostRoot, programs: Programs) -> Optional[str]:
    status = host.data(_DPKG_STATUS, _MAX_STATUS_BYTES) or b""
    ours = installed = False
    for line in status.decode("utf-8", errors="replace").splitlines():
        field, _colon, value = line.partition(": ")
        if field == "Package":
            ours, installed = _PACKAGE.match(value) is not None, False
        elif field == "Status":
            # "hold ok installed" where someone keeps it at its version.
            installed = value.endswith(" ok installed")
        elif field == "Version" and ours and installed:
            return re.split(r"[-+~]", value.rpartition(":")[2])[0]
    found = _RPM.search(programs.output("rpm") or "")
    return found.group(1) if found else None
