# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""The findings of one host, as a filter over its facts."""

from __future__ import annotations

from typing import Any, Callable

from ansible.errors import AnsibleFilterError
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.diagnose import (
    diagnose,
)


def findings(
    facts: dict[str, Any], intent: dict[str, Any] | None = None, host: str = "localhost"
) -> list[dict[str, Any]]:
    """As ``doctor.diagnose.diagnose``; an unknown intent is an error of the template."""
    try:
        return diagnose(facts, intent, host)
    except ValueError as error:
        raise AnsibleFilterError(f"diagnose: {error}") from error


class FilterModule:
    """The filter named after the module."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Names and functions."""
        return {"diagnose": findings}
