"""Writes down which tasks changed a host, and which reached it, one JSON file for each run.

What check mode promised can then be compared with what a real run did, and a run's cost be counted.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import time
from pathlib import Path

from ansible import context
from ansible.plugins.callback import CallbackBase

# Actions that do their work on the controller.
LOCAL = {
    f"ansible.builtin.{name}"
    for name in (
        "assert",
        "debug",
        "fail",
        "include_role",
        "include_tasks",
        "include_vars",
        "set_fact",
    )
} | {"ansible.builtin.validate_argument_spec", "epfleet.expert_parallel.check_fleet"}

DOCUMENTATION = """
name: record_changes
type: aggregate
short_description: Record the changes of each run, and the tasks that reach hosts
description: Writes a JSON file for each run of a playbook into the folder $EPFLEET_CHANGES.
requirements:
  - enable in configuration
"""


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "record_changes"
    CALLBACK_NEEDS_ENABLED = True

    def v2_playbook_on_start(self, playbook):
        self._record = {
            "playbook": Path(playbook._file_name).name,
            "check": bool(context.CLIARGS.get("check")),
            "started": time.time(),
            "changes": [],
            "reached": [],
        }

    def v2_runner_on_ok(self, result):
        # The role's prefix is left out: it is there or not by how the role was entered.
        task = result._task.get_name().rsplit(" : ", 1)[-1]
        entry = [result._host.get_name(), task]
        if result.is_changed():
            self._record["changes"].append(entry)
        if result._task.action not in LOCAL and not result._task.delegate_to:
            self._record["reached"].append(entry)

    def v2_playbook_on_stats(self, stats):
        folder = Path(os.environ["EPFLEET_CHANGES"])
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{self._record['started']:.3f}-{self._record['playbook']}.json"
        (folder / name).write_text(json.dumps(self._record, indent=2) + "\n")
