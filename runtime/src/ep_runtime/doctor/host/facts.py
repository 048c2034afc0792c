# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""The one picture of a host that every role decides on."""

from __future__ import annotations

import json
from typing import Any, Dict, List

from . import cuda, gdrcopy, initramfs, modprobe, nvshmem, procfs
from .root import HostRoot

CHANGES_FILE = "/var/lib/epfleet/changes.json"


def gather(root: str, require_options: bool, nvshmem_prefix: str) -> dict[str, Any]:
    """Everything host_facts returns under ``epfleet``; reads only."""
    facts: Dict[str, Any] = _printable(_gather(root, require_options, nvshmem_prefix))
    return facts


def _gather(root: str, require_options: bool, nvshmem_prefix: str) -> dict[str, Any]:
    host = HostRoot(root)
    gpus = procfs.gpus(host)
    module = modprobe.driver_module(modprobe.config_files(host))
    version, flavour = procfs.driver_version(host)
    return {
        "os": procfs.operating_system(host),
        "kernel": {
            "release": host.line("/proc/sys/kernel/osrelease"),
            "cmdline": host.line(modprobe.COMMAND_LINE) or "",
            "installed": procfs.kernels(host),
        },
        "nvidia": {
            "gpus": gpus,
            "gpu_count": len(gpus),
            "module_loaded": host.exists("/sys/module/nvidia") or host.exists(procfs.PARAMS),
            "version": version,
            "flavour": flavour,
            "params": procfs.driver_params(host),
            "modprobe": _modprobe(host, module),
        },
        "initramfs": initramfs.facts(host, module, require_options),
        "gdrdrv": gdrcopy.facts(host),
        "nvshmem": nvshmem.copies(host, nvshmem_prefix),
        "cuda": cuda.facts(host, version),
        "boot": procfs.boot(host),
        "secure_boot": procfs.secure_boot(host),
        "changes": _changes(host),
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
