# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Defaults of the collection's roles, for plays that must know them before a role runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

_ROLES = Path(__file__).resolve().parents[2] / "roles"
ROLES = sorted(path.parent.parent.name for path in _ROLES.glob("*/defaults/main.yml"))


def role_defaults(role: str) -> dict[str, Any]:
    """The content of the role's defaults/main.yml, not templated; empty when it has none."""
    path = _ROLES / role / "defaults" / "main.yml"
    content = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return content if isinstance(content, dict) else {}
