# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Loading the NVIDIA driver anew in place of a reboot."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Callable, List, Tuple

from ansible_collections.epfleet.expert_parallel.plugins.module_utils import gpu_users
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.procfs import (
    device_major,
)

if TYPE_CHECKING:
    from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.root import (
        HostRoot,
    )

RunCommand = Callable[[List[str]], Tuple[int, str, str]]
# Each needs those after it, so they go in this order and come back in the opposite one.
MODULES = ("gdrdrv", "nvidia_peermem", "nvidia_drm", "nvidia_modeset", "nvidia_uvm", "nvidia")
_UNITS = (
    "epfleet-gdrdrv.service",
    "nvidia-dcgm.service",
    "nvidia-fabricmanager.service",
    "nvidia-persistenced.service",
)
_NODES = (("/dev/nvidia-uvm", "nvidia-uvm"), ("/dev/gdrdrv", "gdrdrv"))


class ReloadError(Exception):
    """Why the driver was not loaded anew, and what state the host is in."""


def loaded(host: HostRoot) -> List[str]:
    """The driver's modules that are loaded, in unloading order."""
    return [name for name in MODULES if host.exists(f"/sys/module/{name}")]


def reload(host: HostRoot, run: RunCommand) -> List[str]:
    """Load the driver anew and return the modules in the order of their load."""
    users = [user for user in gpu_users.find(host) if not gpu_users.is_service(user)]
    if users:
        told = ", ".join(f"{user['command']} ({user['pid']})" for user in users[:5])
        raise ReloadError(
            f"The driver can't be loaded anew: {told} use it. End them, or set reboot_method to"
            " reboot."
        )
    modules = loaded(host)
    units = [unit for unit in _UNITS if run(["systemctl", "is-active", "--quiet", unit])[0] == 0]
    for unit in units:
        _must(run, ["systemctl", "stop", unit], "no module was unloaded")
    gone: List[str] = []
    try:
        for name in modules:
            _must(run, ["modprobe", "-r", name], "the driver has its old options still")
            gone.append(name)
    finally:
        # Whatever happened, what was loaded before is loaded afterwards.
        problems = []
        for command in (
            *(["modprobe", name] for name in reversed(gone)),
            *(["systemctl", "start", unit] for unit in reversed(units)),
        ):
            code, _output, errors = run(command)
            if code != 0:
                problems.append(f"`{' '.join(command)}` failed: {errors.strip()}")
    if problems:
        raise ReloadError("The driver did not come back wholly: " + "; ".join(problems))
    _check_nodes(host)
    return list(reversed(gone))


def _check_nodes(host: HostRoot) -> None:
    for path, driver in _NODES:
        status, major = host.stat(path), device_major(host, driver)
        if status is None or major is None or os.major(status.st_rdev) == major:
            continue
        raise ReloadError(
            f"{path} still has the major number {os.major(status.st_rdev)} and {driver} has {major}"
            " now; run `nvidia-modprobe -u -c=0`, or reboot the host."
        )


def _must(run: RunCommand, command: List[str], state: str) -> None:
    code, output, errors = run(command)
    if code != 0:
        raise ReloadError(
            f"`{' '.join(command)}` failed with {code}: {(errors or output).strip()}; {state}."
        )
