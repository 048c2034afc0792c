# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Limits and kernel settings that RDMA and steady latency ask for, and the container around us."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from .pci import integer

if TYPE_CHECKING:
    from .root import HostRoot

UNLIMITED = "unlimited"
_IPC_LOCK = 14
_SYSTEM_CONF = ("/etc/systemd/system.conf", "/etc/systemd/system.conf.d/*.conf")


def limits(host: HostRoot) -> Dict[str, Any]:
    """``memlock``: soft limit of the reading session, of PAM's files and of systemd's units.

    Each is ``unlimited``, a number of bytes, or null where nothing says.
    """
    return {
        "memlock": {
            "session": _session(host),
            "pam": _pam(host),
            "systemd": _systemd(host),
        },
        "numa_balancing": integer(host.line("/proc/sys/kernel/numa_balancing")),
    }


def _session(host: HostRoot) -> Any:
    match = re.search(r"^Max locked memory\s+(\S+)", host.text("/proc/self/limits") or "", re.M)
    return _bytes(match.group(1), 1) if match else None


def _pam(host: HostRoot) -> Any:
    value = None
    files = ["/etc/security/limits.conf", *host.glob("/etc/security/limits.d/*.conf")]
    for path in files:
        for line in (host.text(path) or "").splitlines():
            words = line.partition("#")[0].split()
            counts = len(words) == 4 and words[0] in ("*", "root") and words[1] in ("-", "soft")
            if counts and words[2] == "memlock":
                value = _bytes(words[3], 1024)
    return value


def _systemd(host: HostRoot) -> Any:
    value = None
    for path in (path for pattern in _SYSTEM_CONF for path in host.glob(pattern)):
        for line in (host.text(path) or "").splitlines():
            name, equals, text = line.strip().partition("=")
            if equals and name.strip() == "DefaultLimitMEMLOCK":
                value = _bytes(text.strip().split(":")[0], 1)
    return value


def _bytes(text: str, unit: int) -> Any:
    if text.lower() in ("unlimited", "infinity", "-1"):
        return UNLIMITED
    match = re.match(r"^(\d+)([KMGT]?)$", text.upper())
    if match is None:
        return None
    return int(match.group(1)) * unit * 1024 ** " KMGT".index(match.group(2) or " ")


def container(host: HostRoot) -> Dict[str, Any]:
    """``inside``: the kind of container this is, null on a bare host; what it was given."""
    inside = None
    if host.exists("/run/.containerenv"):
        inside = "podman"
    elif host.exists("/.dockerenv"):
        inside = "docker"
    elif host.exists("/var/run/secrets/kubernetes.io") or host.exists("/run/secrets/kubernetes.io"):
        inside = "kubernetes"
    verbs = [name for name in host.names("/dev/infiniband") if name.startswith("uverbs")]
    return {
        "inside": inside,
        "driver_container": host.exists("/run/nvidia/driver"),
        "uverbs": verbs,
        "ipc_lock": _capability(host, _IPC_LOCK),
    }


def _capability(host: HostRoot, bit: int) -> Optional[bool]:
    match = re.search(r"^CapEff:\s*([0-9a-fA-F]+)", host.text("/proc/self/status") or "", re.M)
    return None if match is None else bool(int(match.group(1), 16) >> bit & 1)


def loaded_modules(host: HostRoot) -> List[str]:
    """Names of the loaded modules that drive or disturb GPUs and RDMA devices."""
    wanted = ("nvidia", "nouveau", "gdrdrv", "nv_peer_mem", "mlx5", "ib_", "rdma", "irdma", "bnxt")
    lines = (host.text("/proc/modules") or "").splitlines()
    names = (line.split(" ")[0] for line in lines)
    return sorted(name for name in names if name.startswith(wanted))


def environment(host: HostRoot) -> Dict[str, Dict[str, Any]]:
    """NVSHMEM's and NCCL's variables that every login gets: ``value`` and ``line`` by name."""
    found: Dict[str, Dict[str, Any]] = {}
    for number, line in enumerate((host.text("/etc/environment") or "").splitlines(), 1):
        name, equals, value = line.strip().partition("=")
        name = name.replace("export ", "").strip()
        if equals and name.startswith(("NVSHMEM_", "NCCL_")):
            found[name] = {"value": value.strip().strip("\"'"), "line": number}
    return found


def loading_files(host: HostRoot, module: str) -> List[str]:
    """The files in modules-load.d that have ``module`` loaded at each boot."""
    found = []
    for pattern in ("/etc/modules-load.d/*.conf", "/usr/lib/modules-load.d/*.conf", "/etc/modules"):
        for path in host.glob(pattern):
            names = [
                line.strip().replace("-", "_") for line in (host.text(path) or "").splitlines()
            ]
            if module in names:
                found.append(path)
    return found
