# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""The decisions of the roles, as filters over a host's facts."""

from __future__ import annotations

from typing import Any, Callable

from ansible_collections.epfleet.expert_parallel.plugins.module_utils import (
    decisions,
    driver_parts,
    inputs,
)


class FilterModule:
    """Filters named after the functions they are."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Names and functions."""
        return {
            "resolve_mode": decisions.resolve_mode,
            "driver_plan": decisions.driver_plan,
            "reboot_need": decisions.reboot_need,
            "stale_images": decisions.stale_images,
            "unsigned_modules": decisions.unsigned_modules,
            "fabric_manager": driver_parts.fabric_manager,
            "peer_memory": driver_parts.peer_memory,
            "pip_arguments": inputs.pip_arguments,
        }
