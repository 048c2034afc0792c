# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""What the running kernel and the loaded NVIDIA driver say under /proc and /sys."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Dict, List

from . import pci

if TYPE_CHECKING:
    from .root import HostRoot

DISPLAY_CLASS = "0x03"
PARAMS = "/proc/driver/nvidia/params"
_SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
# Node: the names under which drivers, newer and older, register its major.
_DRIVER_NODES = {
    "nvidiactl": ("nvidia", "nvidia-frontend"),
    "nvidia-uvm": ("nvidia-uvm",),
    "nvidia-nvswitchctl": ("nvidia-nvswitch",),
}
_VERSION = re.compile(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b")


def driver_params(host: HostRoot) -> dict[str, str] | None:
    """The loaded module's parameters, named as there (no ``NVreg_``); None when not loaded."""
    text = host.text(PARAMS)
    if text is None:
        return None
    params = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and name.strip():
            params[name.strip()] = value.strip().strip('"')
    return params


def driver_version(host: HostRoot) -> tuple[str | None, str | None]:
    """Version and flavour (``open`` or ``proprietary``) of the loaded driver."""
    line = host.line("/proc/driver/nvidia/version") or ""
    match = _VERSION.search(line)
    version = match.group(1) if match else host.line("/sys/module/nvidia/version")
    if not line:
        return version, None
    return version, "open" if "Open Kernel Module" in line else "proprietary"


def gpus(host: HostRoot) -> list[dict[str, Any]]:
    """NVIDIA display controllers on the PCI bus, with their names where the driver tells them."""
    found: List[Dict[str, Any]] = []
    for address in host.names("/sys/bus/pci/devices"):
        device = "/sys/bus/pci/devices/" + address
        if (host.line(device + "/vendor") or "").lower() != pci.NVIDIA_VENDOR:
            continue
        if not (host.line(device + "/class") or "").lower().startswith(DISPLAY_CLASS):
            continue
        found.append(
            {
                "pci": address,
                "device": host.line(device + "/device"),
                "name": None,
                "uuid": None,
                **pci.place(host, address),
            }
        )
    # A container may hide /sys while the driver still lists its GPUs.
    known = {gpu["pci"]: gpu for gpu in found}
    for address in host.names("/proc/driver/nvidia/gpus"):
        gpu = known.get(address)
        if gpu is None:
            gpu = {"pci": address, "device": None, "name": None, "uuid": None}
            gpu.update(pci.place(host, address))
            found.append(gpu)
        for line in (host.text(f"/proc/driver/nvidia/gpus/{address}/information") or "").split(
            "\n"
        ):
            key, _colon, value = line.partition(":")
            if key.strip() == "Model":
                gpu["name"] = value.strip()
            elif key.strip() == "GPU UUID":
                gpu["uuid"] = value.strip()
    return found


def driver_nodes(host: HostRoot) -> dict[str, dict[str, int | None]]:
    """The driver's device nodes with their own ``major`` and the one ``registered`` now.

    A node of an earlier load can lead to another driver altogether. A node is left out that is not
    there, or that is a plain file.
    """
    nodes = {}
    for node, names in _DRIVER_NODES.items():
        present = host.device_major("/dev/" + node)
        if present is None:
            continue
        majors = (device_major(host, name) for name in names)
        registered = next((major for major in majors if major is not None), None)
        nodes[node] = {"major": present, "registered": registered}
    return nodes


def operating_system(host: HostRoot) -> dict[str, str | None]:
    """Identity of the distribution from os-release."""
    text = host.text("/etc/os-release")
    if text is None:
        text = host.text("/usr/lib/os-release") or ""
    values = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals:
            values[name.strip()] = value.strip().strip("\"'")
    names = {values.get("ID", ""), *values.get("ID_LIKE", "").split()}
    family = None
    for candidate, members in (
        ("debian", {"debian", "ubuntu"}),
        ("redhat", {"rhel", "fedora", "centos"}),
        ("suse", {"suse", "sles", "opensuse", "opensuse-leap"}),
    ):
        if names & members:
            family = candidate
            break
    return {"id": values.get("ID"), "version_id": values.get("VERSION_ID"), "family": family}


def kernels(host: HostRoot) -> list[str]:
    """Releases of the installed kernels: the directories that hold a module index."""
    releases = set()
    for base in ("/lib/modules", "/usr/lib/modules"):
        for name in host.names(base):
            directory = f"{base}/{name}"
            if host.exists(directory + "/modules.order") or host.exists(directory + "/modules.dep"):
                releases.add(name)
    return sorted(releases)


def boot(host: HostRoot) -> dict[str, Any]:
    """Identity and time (seconds since 1970) of the present boot."""
    time = None
    for line in (host.text("/proc/stat") or "").splitlines():
        if line.startswith("btime "):
            time = pci.integer(line[6:])
    return {"boot_id": host.line("/proc/sys/kernel/random/boot_id"), "boot_time": time}


def secure_boot(host: HostRoot) -> bool | None:
    """Whether the firmware enforces signatures; None when it does not say."""
    data = host.data(_SECURE_BOOT)
    # Four bytes of attributes come before the value.
    return None if data is None or len(data) < 5 else data[4] == 1


def device_major(host: HostRoot, name: str) -> int | None:
    """The character major that a driver has registered, from /proc/devices."""
    for line in (host.text("/proc/devices") or "").splitlines():
        words = line.split()
        if line.startswith("Block"):
            break
        if len(words) == 2 and words[1] == name:
            return pci.integer(words[0])
    return None
