"""Writes down which task reported a change on which host, one JSON file for each run of a playbook.

What check mode promised can then be compared with what a real run did.
"""

# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import time
from pathlib import Path

from ansible import context
from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: record_changes
type: aggregate
short_description: Record the changes of each run
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
        }

    def v2_runner_on_ok(self, result):
        if result.is_changed():
            # The role's prefix is left out: it is there or not by how the role was entered.
            task = result._task.get_name().rsplit(" : ", 1)[-1]
            self._record["changes"].append([result._host.get_name(), task])

    def v2_playbook_on_stats(self, stats):
        folder = Path(os.environ["EPFLEET_CHANGES"])
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{self._record['started']:.3f}-{self._record['playbook']}.json"
        (folder / name).write_text(json.dumps(self._record, indent=2) + "\n")
