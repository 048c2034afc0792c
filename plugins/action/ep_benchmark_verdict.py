# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Sum up on the controller what every host says of a benchmark run."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.ep_verdict import (
    RUNNING,
    verdict,
)

_SOON_S, _SELDOM_S = 3, 10


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
                "seconds": {"type": "float", "default": 0},
                "limit": {"type": "float", "default": 0},
            }
        )
        seconds, limit = given["seconds"], given["limit"]
        hostvars = (task_vars or {})["hostvars"]
        hosts = {
            name: dict(hostvars[name].get(given["results"]) or {"failed": True})
            for name in given["hosts"]
        }
        overdue = seconds - limit if limit else 0.0
        found = verdict(hosts, given["ranks_per_host"], given["run_id"], overdue)
        if found["state"] == RUNNING:
            self._display.display(f"ep_benchmark: {seconds:.0f} s, {found['message']}")
        # Soon at first, for short runs, and not so seldom that the launchers think us gone.
        result.update(changed=False, wait=int(min(_SELDOM_S, _SOON_S + seconds / 4)), **found)
        return result
