# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""What a host is meant to be: the roles' variables, or what a host alone is best held to."""

from __future__ import annotations

from typing import Any, Dict

from .model import Facts, Intent

# The roles' defaults, and the shape that DeepEP's own low-latency test runs.
DEFAULTS: Dict[str, Any] = {
    "mode": "auto",
    "options": {"EnableStreamMemOPs": 1},
    "dwords": {"PeerMappingOverride": 1},
    "num_tokens": 128,
    "num_experts": 256,
    "num_ranks": None,
    "num_qps_per_rank": None,
    "qp_depth": None,
}
# The modes in which GPUs reach those of other hosts by IBGDA.
REMOTE_MODES = ("gpu", "cpu")


def resolve(facts: Facts, given: Intent) -> Intent:
    """Fill in defaults; auto becomes gpu with GPUs and RDMA devices, off with GPUs alone.

    Raises ValueError naming a key that is unknown.
    """
    unknown = sorted(set(given) - set(DEFAULTS))
    if unknown:
        raise ValueError(f"unknown intent {unknown[0]!r}; known are {', '.join(sorted(DEFAULTS))}")
    intent = {**DEFAULTS, **given}
    if intent["mode"] == "auto":
        if not facts["nvidia"]["gpu_count"]:
            intent["mode"] = "reference"
        else:
            intent["mode"] = "gpu" if facts["nics"] else "off"
    return intent


def remote(intent: Intent) -> bool:
    """Whether GPUs are to reach those of other hosts."""
    return intent["mode"] in REMOTE_MODES


def wanted_options(intent: Intent) -> Dict[str, str]:
    """The driver's options as a modprobe.d line names them; empty where the mode needs none."""
    if intent["mode"] != "gpu":
        return {}
    wanted = {"NVreg_" + name: str(value) for name, value in intent["options"].items()}
    if intent["dwords"]:
        entries = "".join(f"{key}={value};" for key, value in intent["dwords"].items())
        wanted["NVreg_RegistryDwords"] = entries
    return wanted
