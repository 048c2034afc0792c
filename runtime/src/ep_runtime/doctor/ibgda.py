# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Can GPUs of this host reach others by IBGDA, and who rings the doorbell?"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple

from .diagnose import diagnose
from .host import modprobe, nvshmem
from .intent import wanted_options
from .model import ERROR, Facts

ENABLED, CPU_ASSISTED, DISABLED = "enabled", "cpu-assisted", "disabled"
# Findings that leave no IBGDA at all, and those that keep the GPU from the doorbell.
_ANY_MODE = (
    *("EPD301", "EPD302", "EPD303", "EPD309", "EPD501", "EPD504", "EPD506", "EPD507", "EPD512"),
    *("EPD601", "EPD602", "EPD609", "EPD806"),
)
_DOORBELL = ("EPD101", "EPD102", "EPD103", "EPD104", "EPD514")


class Answer(NamedTuple):
    """``reasons`` are sentences: what is there, or what is missing with its finding's id."""

    support: str
    reasons: List[str]


def answer(facts: Facts) -> Answer:
    """What NVSHMEM would do with the host as it is now.

    enabled: the GPU rings the NIC's doorbell. cpu-assisted: a CPU thread does. disabled: neither.
    Judged by the loaded driver's parameters, not by what files promise for the next load.
    """
    if not facts["nvidia"]["gpu_count"]:
        return Answer(DISABLED, ["there is no NVIDIA GPU"])
    found = {item["id"]: item for item in diagnose(facts, {"mode": "gpu"})}
    against = [_reason(found[name]) for name in _ANY_MODE if name in found and _blocks(facts, name)]
    if not facts["nvidia"]["module_loaded"] and not against:
        against.append("the NVIDIA driver is not loaded")
    if against:
        return Answer(DISABLED, against)
    doorbell = [_reason(found[name]) for name in _DOORBELL if name in found]
    live = _live(facts)
    if live and "EPD514" not in found:
        return Answer(ENABLED, live)
    return _assisted(facts, doorbell or ["the loaded driver's parameters could not be read"])


def _live(facts: Facts) -> List[str]:
    """What the loaded driver has, when that is all it needs; nothing otherwise."""
    params = facts["nvidia"]["params"]
    if params is None:
        return []
    # Only the registry entry opens the doorbell; stream memory operations are another interface.
    wanted = wanted_options({"mode": "gpu", "options": {}, "dwords": {"PeerMappingOverride": 1}})
    for name, value in wanted.items():
        if not modprobe.gives(name, value, params.get(name[len("NVreg_") :])):
            return []
    return [f"the loaded driver has RegistryDwords {params['RegistryDwords']}"]


def _blocks(facts: Facts, name: str) -> bool:
    """A single port that is down leaves the other NICs."""
    if name != "EPD602":
        return True
    return not any(p["state"] == "ACTIVE" for nic in facts["nics"] for p in nic["ports"])


def _assisted(facts: Facts, why_not_gpu: List[str]) -> Answer:
    gdrcopy = facts["gdrdrv"]["device_ok"] and facts["gdrdrv"]["library"]
    versions = [nvshmem.version_key(copy["version"]) for copy in facts["nvshmem"]]
    without = versions and min(versions) >= nvshmem.version_key(nvshmem.NO_GDRCOPY_NEEDED)
    if gdrcopy:
        return Answer(CPU_ASSISTED, [*why_not_gpu, "GDRCopy is there (gdrdrv and libgdrapi)"])
    if without:
        reason = f"NVSHMEM {nvshmem.NO_GDRCOPY_NEEDED} or newer falls back to host memory"
        return Answer(CPU_ASSISTED, [*why_not_gpu, reason])
    missing = f"NVSHMEM before {nvshmem.NO_GDRCOPY_NEEDED} needs GDRCopy, which is not usable"
    return Answer(DISABLED, [*why_not_gpu, missing])


def _reason(item: Dict[str, Any]) -> str:
    evidence = item["evidence"][0]
    severity = "" if item["severity"] == ERROR else f", a {item['severity']}"
    return f"{item['title']} ({item['id']}{severity}; {evidence['where']}: {evidence['seen']})"
