# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""The few programs that know what no file says.

They run on the live system only, all at once and under one deadline, so that a driver that hangs
costs its own answer and not the whole picture. For any other root their output is read from
``/run/epfleet/recorded/NAME``: a tree taken from a host can hold it.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Dict, List, Optional

if TYPE_CHECKING:
    from .root import HostRoot

RECORDED = "/run/epfleet/recorded/"
# What nvidia-smi calls it, and what the facts do.
GPU_FIELDS = {
    "compute_cap": "compute_capability",
    "mig.mode.current": "mig_mode",
    "compute_mode": "compute_mode",
    "persistence_mode": "persistence_mode",
}
# Before and since branch 580.
_FABRIC_MANAGERS = ("nvidia-fabric-manager", "nvidia-fabricmanager")
_GPU_QUERY = "--query-gpu=pci.bus_id," + ",".join(GPU_FIELDS)
PROGRAMS: Dict[str, List[str]] = {
    "nvidia-smi": ["nvidia-smi", _GPU_QUERY, "--format=csv,noheader"],
    "nvidia-smi-nvlink": ["nvidia-smi", "nvlink", "--status"],
    "dmesg": ["dmesg"],
    "df": ["df", "-Pk", "/boot"],
    "rpm": ["rpm", "-q", "--qf", "%{NAME} %{VERSION}\n", *_FABRIC_MANAGERS],
}
DEADLINE_S = 0.8
_MAX_BYTES = 4 * 1024 * 1024
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


class Programs:
    """Programs started at construction; ``output`` waits for one of them."""

    def __init__(self, host: HostRoot, more: Optional[Dict[str, List[str]]] = None) -> None:
        """``more`` are programs that depend on the host, by name as in ``PROGRAMS``."""
        self._host = host
        self._end = time.monotonic() + DEADLINE_S
        self._running: Dict[str, subprocess.Popen[bytes]] = {}
        for name, command in {**PROGRAMS, **(more or {})}.items() if host.live else ():
            try:
                self._running[name] = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=_ENVIRONMENT,
                )
            except OSError:
                continue

    def output(self, name: str) -> Optional[str]:
        """What ``name`` printed; None when the host has no such program or it gave no answer.

        A program that was too late is not waited for again.
        """
        if not self._host.live:
            return self._host.text(RECORDED + name)
        process = self._running.pop(name, None)
        if process is None:
            return None
        try:
            data, _errors = process.communicate(timeout=max(0.0, self._end - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._running[name] = process
            self._host.unread.add(f"{name} (no answer in {DEADLINE_S} s)")
            return None
        if name == "dmesg" and process.returncode != 0:
            self._host.unread.add("the kernel's log (dmesg)")
            return None
        return data[:_MAX_BYTES].decode("utf-8", errors="replace")

    def close(self) -> None:
        """End what nobody asked for."""
        for process in self._running.values():
            process.kill()
            # A process in the driver's hands cannot be killed at once, and is left alone.
            with process.stdout or nullcontext(), suppress(subprocess.TimeoutExpired):
                process.wait(timeout=0.1)
        self._running.clear()


def boot_space(host: HostRoot, programs: Programs) -> Dict[str, Optional[int]]:
    """Free bytes on the file system of /boot, and the size of the largest image there."""
    free = None
    for line in (programs.output("df") or "").splitlines()[1:]:
        words = line.split()
        if len(words) >= 6 and words[3].isdigit():
            free = int(words[3]) * 1024
    sizes = []
    for pattern in ("/boot/initr*", "/boot/initramfs*"):
        for path in host.glob(pattern):
            status = host.stat(path)
            if status is not None and os.path.isfile(host.path(path)):
                sizes.append(status.st_size)
    return {"free_bytes": free, "largest_image_bytes": max(sizes) if sizes else None}


def gpu_answers(programs: Programs) -> Dict[str, Any]:
    """``nvidia-smi``'s fields by PCI address, and its complaint when it has one."""
    text = programs.output("nvidia-smi")
    answers: Dict[str, Dict[str, str]] = {}
    complaint = None
    for line in (text or "").splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) == len(GPU_FIELDS) + 1 and ":" in values[0]:
            domain, _colon, rest = values[0].lower().partition(":")
            answers[f"{domain[-4:]}:{rest}"] = dict(zip(GPU_FIELDS.values(), values[1:]))
        elif complaint is None and line.strip():
            complaint = line.strip()[:300]
    return {"gpus": answers, "complaint": complaint}


def nvlinks(programs: Programs) -> Optional[int]:
    """How many NVLinks of all GPUs are active; None when nvidia-smi does not say."""
    text = programs.output("nvidia-smi-nvlink")
    if text is None or not re.search(r"^GPU \d+:", text, re.MULTILINE):
        return None
    return len(re.findall(r"^\s+Link \d+: [\d.]+ GB/s", text, re.MULTILINE))


_LOG_WORDS = (
    "nvidia",
    "nvrm",
    "gdrdrv",
    "peer",
    "mlx5",
    "nouveau",
    "module verification",
    "key was",
)
_MAX_LOG_LINES = 100


def kernel_log(programs: Programs) -> List[str]:
    """The lines of the kernel's log that speak of our modules, the first hundred."""
    lines = (programs.output("dmesg") or "").splitlines()
    kept = [line[:300] for line in lines if any(word in line.lower() for word in _LOG_WORDS)]
    return kept[:_MAX_LOG_LINES]
