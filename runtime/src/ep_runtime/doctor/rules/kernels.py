# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Which kernels count, for the rules that look at more than one."""

from __future__ import annotations

from typing import Dict, List, Tuple

from ..model import Facts


def that_count(facts: Facts) -> List[Tuple[str, str]]:
    """``(release, why)`` of the kernel that boots next, and of the running one."""
    found: Dict[str, str] = {}
    kernel = facts["kernel"]
    following = kernel["next"]["release"]
    if following:
        found[following] = f"boots next: {kernel['next']['evidence']}"
    if kernel["release"] in kernel["installed"]:
        found.setdefault(kernel["release"], "is running")
    return list(found.items())


def will_boot(facts: Facts) -> str:
    """The release that boots next, as far as it can be told; else the running one."""
    return str(facts["kernel"]["next"]["release"] or facts["kernel"]["release"])
