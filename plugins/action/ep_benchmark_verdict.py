# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Sum up on the controller what every host says of a benchmark run."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.ep_verdict import verdict


class ActionModule(ActionBase):
    """See the documentation of the module of the same name."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the state of the run and a sentence about it."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _checked, given = self.validate_argument_spec(
            argument_spec={
                "hosts": {"type": "list", "elements": "str", "required": True},
                "results": {"type": "str", "required": True},
                "ranks_per_host": {"type": "int", "required": True},
                "run_id": {"type": "str", "required": True},
                "overdue": {"type": "float", "default": 0},
            }
        )
        hostvars = (task_vars or {})["hostvars"]
        hosts = {
            name: dict(hostvars[name].get(given["results"]) or {"failed": True})
            for name in given["hosts"]
        }
        result.update(
            changed=False,
            **verdict(hosts, given["ranks_per_host"], given["run_id"], given["overdue"]),
        )
        return result
