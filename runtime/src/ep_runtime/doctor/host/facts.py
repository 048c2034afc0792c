# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""The one picture of a host that every role decides on."""

from __future__ import annotations

import json
from typing import Any, Dict, List

from . import (
    bootkernel,
    commands,
    cuda,
    dkms,
    fabric,
    gdrcopy,
    initramfs,
    libraries,
    limits,
    modinfo,
    modprobe,
    nics,
    nvshmem,
    pci,
    procfs,
    qos,
    software,
)
from .root import HostRoot

CHANGES_FILE = "/var/lib/epfleet/changes.json"


NVSHMEM_PREFIX = "/opt/epfleet/nvshmem"
VENV = "/opt/epfleet/venv"


def gather(
    root: str = "/",
    require_options: bool = False,
    nvshmem_prefix: str = NVSHMEM_PREFIX,
    venv: str = VENV,
) -> dict[str, Any]:
    """Everything host_facts returns under ``epfleet``; reads only."""
    host = HostRoot(root)
    # Started first, so that they answer while the files are read.
    programs = commands.Programs(host, qos.programs(host))
    try:
        facts = _gather(host, programs, require_options, nvshmem_prefix, venv)
    finally:
        programs.close()
    facts["unread"] = sorted(host.unread)
    printable: Dict[str, Any] = _printable(facts)
    return printable


def _gather(
    host: HostRoot,
    programs: commands.Programs,
    require_options: bool,
    nvshmem_prefix: str,
    venv: str,
) -> dict[str, Any]:
    gpus = procfs.gpus(host)
    rdma = nics.nics(host)
    module = modprobe.driver_module(modprobe.config_files(host))
    version, flavour = procfs.driver_version(host)
    answers = commands.gpu_answers(programs)
    for gpu in gpus:
        gpu.update(dict.fromkeys(commands.GPU_FIELDS.values()))
        gpu.update(answers["gpus"].get(gpu["pci"].lower(), {}))
    for nic in rdma:
        nic.update(qos.facts(host, programs, nic))
    runtime = software.facts(host, venv)
    return {
        "os": procfs.operating_system(host),
        "kernel": _kernel(host),
        "nvidia": {
            "gpus": gpus,
            "gpu_count": len(gpus),
            "module_loaded": host.exists("/sys/module/nvidia") or host.exists(procfs.PARAMS),
            "version": version,
            "flavour": flavour,
            "params": procfs.driver_params(host),
            "modprobe": _modprobe(host, module),
            "peermem": {
                **_loaded_module(host, "nvidia_peermem"),
                "at_boot": limits.loading_files(host, "nvidia_peermem"),
            },
            "complaint": answers["complaint"],
            "nvlinks": commands.nvlinks(programs),
            "nodes": procfs.driver_nodes(host),
        },
        "modules": {
            "loaded": limits.loaded_modules(host),
            "installed": modinfo.installed(host, procfs.kernels(host)),
            "dkms": dkms.facts(host),
        },
        "initramfs": initramfs.facts(host, module, require_options),
        "gdrdrv": gdrcopy.facts(host),
        "libraries": libraries.facts(host),
        "nvshmem": nvshmem.copies(host, nvshmem_prefix, venv),
        "nvshmem_current": nvshmem.current(host, nvshmem_prefix),
        "nvshmem_loaded": nvshmem.loaded(host, runtime["site"]),
        "cuda": cuda.facts(host, version),
        "runtime": runtime,
        "nics": rdma,
        "mlx5_core": _loaded_module(host, "mlx5_core"),
        "affinity": nics.affinity(gpus, rdma),
        "pci": {
            "iommu_units": len(host.names("/sys/class/iommu")),
            "redirecting_bridges": pci.redirecting_bridges(
                host, [device["path"] for device in (*gpus, *rdma)]
            ),
        },
        "fabric": fabric.facts(host, programs),
        "limits": limits.limits(host),
        "environment": limits.environment(host),
        "container": limits.container(host),
        "boot": {**procfs.boot(host), **commands.boot_space(host, programs)},
        "secure_boot": procfs.secure_boot(host),
        "kernel_log": commands.kernel_log(programs),
        "changes": _changes(host),
    }


def _kernel(host: HostRoot) -> dict[str, Any]:
    release = host.line("/proc/sys/kernel/osrelease")
    return {
        "release": release,
        "cmdline": host.line(modprobe.COMMAND_LINE) or "",
        "installed": procfs.kernels(host),
        "bootable": bootkernel.bootable(host),
        "next": bootkernel.next_boot(host),
        "boot_arguments": bootkernel.boot_arguments(host),
        "config": bootkernel.config(host, release),
        "lockdown": bootkernel.lockdown(host),
    }


def _loaded_module(host: HostRoot, name: str) -> dict[str, Any]:
    return {
        "loaded": host.exists("/sys/module/" + name),
        "version": host.line(f"/sys/module/{name}/version"),
    }


def _printable(value: Any) -> Any:
    """``value`` with bytes of file names that are no UTF-8 replaced: Ansible refuses them."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, dict):
        return {_printable(key): _printable(item) for key, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, list) else value


def _modprobe(host: HostRoot, module: str) -> dict[str, Any]:
    files = modprobe.config_files(host)
    ignored = modprobe.ignored_files(host)
    config = modprobe.module_config(files, module, host.text(modprobe.COMMAND_LINE))
    speaking = {item.source for item in config.assignments} | {rule.source for rule in config.rules}
    return {
        "module": module,
        "files": [
            {"path": item.path, "masked_by": item.masked_by}
            for item in files
            if item.path in speaking or item.masked_by is not None
        ],
        "options": config.effective(),
        "assignments": [dict(item._asdict()) for item in config.assignments],
        "rules": [dict(rule._asdict()) for rule in config.rules],
        "conflicts": _conflicts(config.assignments),
        "ignored": ignored,
        "own": host.text(modprobe.OPTIONS_FILE),
    }


def _conflicts(assignments: List[modprobe.Assignment]) -> List[Dict[str, Any]]:
    """Parameters that several places set to different values, with the place that wins."""
    conflicts = []
    winners = {item.parameter: item for item in assignments}
    for parameter, winner in sorted(winners.items()):
        losers = [
            {"value": item.value, "source": item.source, "line": item.line}
            for item in assignments
            if item.parameter == parameter
            and not modprobe.same_value(parameter, item.value, winner.value)
        ]
        if losers:
            conflicts.append(
                {
                    "parameter": parameter,
                    "value": winner.value,
                    "source": winner.source,
                    "overrides": losers,
                }
            )
    return conflicts


def _changes(host: HostRoot) -> Any:
    """Boot in which the options or an image were last written, as the roles recorded it."""
    try:
        content = json.loads(host.text(CHANGES_FILE) or "null")
    except ValueError:
        return None
    return content if isinstance(content, dict) else None
