# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""DKMS: which modules it keeps, for which kernels they are built, and why a build failed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

if TYPE_CHECKING:
    from .root import HostRoot

TREE = "/var/lib/dkms"
NAMES = ("nvidia", "gdrdrv", "mlnx-ofed-kernel")
_FOR_KERNEL = re.compile(r"\bfor kernel (\S+)")
_ERROR = re.compile(r"(?:^|\s)(?:fatal )?error:|^make.*\*\*\*|^ERROR\b|: not found$", re.MULTILINE)


def facts(host: HostRoot) -> List[Dict[str, Any]]:
    """One entry per module and version: ``built`` kernels and ``failed``, a list of failures.

    A failure has the ``kernel`` (null when the log does not say), the ``log``'s path and line, and
    the first ``error`` in it.
    """
    found = []
    for name in host.names(TREE):
        if not any(name == known or name.startswith(known + "-") for known in NAMES):
            continue
        for version in host.names(f"{TREE}/{name}"):
            base = f"{TREE}/{name}/{version}"
            # kernel-* are links to the installed build, not versions.
            if version.startswith("kernel-") or "source" not in host.names(base):
                continue
            built = [
                kernel
                for kernel in host.names(base)
                if kernel not in ("source", "build")
                and host.glob(f"{base}/{kernel}/*/module/*.ko*")
            ]
            failure = _failure(host, base + "/build/make.log")
            found.append(
                {
                    "name": name,
                    "version": version,
                    "built": built,
                    "failed": [failure] if failure else [],
                }
            )
    return found


def _failure(host: HostRoot, path: str) -> Optional[Dict[str, Any]]:
    """DKMS leaves this log where it is only when the build did not come to its end."""
    text = host.text(path)
    if text is None:
        return None
    error = first_error(text)
    if error is None:
        return None
    kernel = _FOR_KERNEL.search(text)
    return {
        "kernel": kernel.group(1) if kernel else None,
        "log": path,
        "line": error[0],
        "error": error[1],
    }


def first_error(text: str) -> Optional[Tuple[int, str]]:
    """Number and text of the first line of a build's output that is an error."""
    for number, line in enumerate(text.splitlines(), 1):
        if _ERROR.search(line):
            return number, line.strip()[:300]
    return None
