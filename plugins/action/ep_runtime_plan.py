# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Decide on the controller which wheel a host needs, and whether it must be built."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_cache import lookup
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_key import (
    key_inputs,
    wheel_key,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_source import (
    read_source,
    source_digest,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_venv import (
    why_install,
)

RUNTIME = str(Path(__file__).absolute().parents[2] / "runtime")


class ActionModule(ActionBase):
    """See the documentation of the module of the same name."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the plan; it is the same in check mode."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _checked, given = self.validate_argument_spec(
            argument_spec={
                "info": {"type": "dict", "required": True},
                "cache": {"type": "path", "required": True},
                "cuda": {"type": "dict"},
            }
        )
        info = given["info"]
        if info["python"] is None and self._task.check_mode:
            # The interpreter would be installed; which one, and so which wheel, is not known yet.
            result.update(
                changed=False,
                key="unknown",
                inputs={"source": "", "cuda": None},
                reasons=list(info["venv"]["problems"]),
                build=False,
                cache_problem="",
            )
            return result
        if info["python"] is None:
            raise AnsibleActionFail(
                "No Python interpreter runs on this host: set ep_runtime_python"
            )
        try:
            source = source_digest(read_source(RUNTIME))
        except (OSError, ValueError) as error:
            raise AnsibleActionFail(str(error)) from error
        inputs = key_inputs(source, info["python"], given["cuda"])
        key = wheel_key(inputs)
        entry, problem = lookup(os.path.expanduser(given["cache"]), key)
        reasons = why_install(info["venv"], key, entry["payload"] if entry else None)
        result.update(
            changed=False,
            key=key,
            inputs=inputs,
            reasons=reasons,
            build=bool(reasons) and entry is None,
            cache_problem=problem,
        )
        return result
