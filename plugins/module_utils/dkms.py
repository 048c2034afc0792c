# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""What the DKMS modules of a host lack, on top of what ``doctor.host.dkms`` reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List, NamedTuple

from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host import dkms
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.procfs import (
    kernels,
)

if TYPE_CHECKING:
    from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.root import (
        HostRoot,
    )


class Source(NamedTuple):
    """One module source that DKMS has, and the releases of the kernels that it was built for."""

    name: str
    version: str
    built: List[str]

    @property
    def label(self) -> str:
        """As DKMS writes it."""
        return f"{self.name}/{self.version}"


def sources(host: HostRoot) -> List[Source]:
    """Every module and version of ours, the driver's and the network's that DKMS has."""
    return [Source(item["name"], item["version"], item["built"]) for item in dkms.facts(host)]


def buildable(host: HostRoot) -> List[str]:
    """Releases of the installed kernels whose headers are there."""
    return [
        kernel for kernel in kernels(host) if host.exists(f"/lib/modules/{kernel}/build/Makefile")
    ]


def failures(host: HostRoot, since: float = 0) -> Dict[str, str]:
    """``{module/version: first error}`` of builds that failed and left their log.

    ``since`` (seconds since 1970) leaves older failures out.
    """
    found = {}
    for item in dkms.facts(host):
        for failure in item["failed"]:
            status = host.stat(failure["log"])
            if status is not None and status.st_mtime >= since:
                found[f"{item['name']}/{item['version']}"] = failure["error"]
    return found
