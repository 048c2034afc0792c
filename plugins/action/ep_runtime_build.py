# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Send the runtime's source to a host, build the wheel there, keep it on the controller."""

from __future__ import annotations

import base64
import hashlib
import os
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.epfleet.expert_parallel.plugins.action.ep_runtime_plan import RUNTIME
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.full_disk import (
    explained,
    require,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_cache import (
    lookup,
    store,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_key import (
    DROP_IN_SUFFIX,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_source import (
    read_source,
    source_archive,
    source_digest,
)

# What a full cache stops, in its sentence; asked before a host builds for an hour in vain.
_STORING = "storing the wheel on the controller"
_REMEDY = "free some there, or set ep_runtime_cache to a folder of a larger disk"
_ROOM_MIB = 32


class ActionModule(ActionBase):
    """See the documentation of the module of the same name."""

    TRANSFERS_FILES = True
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Build unless the cache has the wheel already; return where it is."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        given = dict(self._task.args)
        cache = os.path.expanduser(given["cache"])
        try:
            keys = [given["key"], given["key"] + DROP_IN_SUFFIX]
            entries = [lookup(cache, key)[0] for key in keys]
            if all(entry is not None for entry in entries):
                result.update(changed=False, wheel=entries[0]["path"], sha256=entries[0]["sha256"])
                return result
            if not self._task.check_mode:
                self._require_room(cache)
                given["archive"] = self._send_source(given["inputs"]["source"])
            built = self._execute_module(
                module_name="epfleet.expert_parallel.ep_runtime_build",
                module_args=given,
                task_vars=task_vars,
            )
            wheels = built.pop("built", [])
            result.update(built)
            # The runtime last: its entry says that the key is complete.
            for key, wheel in reversed(list(zip(keys, wheels))):
                entry = self._keep(cache, key, wheel, given["inputs"], task_vars or {})
                result.update(wheel=entry["path"], sha256=entry["sha256"])
        finally:
            self._remove_tmp_path(self._connection._shell.tmpdir)
        return result

    def _require_room(self, cache: str) -> None:
        try:
            require(cache, _ROOM_MIB, _STORING, _REMEDY)
        except OSError as error:
            raise AnsibleActionFail(str(error)) from error

    def _send_source(self, wanted: str) -> str:
        content = read_source(RUNTIME)
        if source_digest(content) != wanted:
            raise AnsibleActionFail(
                f"The source in {RUNTIME} has changed since this run began: start it again"
            )
        remote: str = self._connection._shell.join_path(
            self._connection._shell.tmpdir, "source.tar.gz"
        )
        self._transfer_data(remote, source_archive(content))
        self._fixup_perms2((self._connection._shell.tmpdir, remote))
        return remote

    def _keep(
        self,
        cache: str,
        key: str,
        wheel: dict[str, str],
        inputs: dict[str, Any],
        task_vars: dict[str, Any],
    ) -> dict[str, Any]:
        content = base64.b64decode(wheel["content"])
        if hashlib.sha256(content).hexdigest() != wheel["sha256"]:
            raise AnsibleActionFail("The wheel was damaged on its way from the host: run again")
        about = {
            "payload": wheel["payload"],
            "inputs": inputs,
            "built_on": task_vars.get("inventory_hostname", ""),
        }
        try:
            return store(cache, key, wheel["file"], content, about)
        except OSError as error:
            told = explained(error, _STORING, cache, _REMEDY)
            if told is error:
                told = OSError(f"The wheel cannot be kept in ep_runtime_cache ({cache}): {error}")
            raise AnsibleActionFail(str(told)) from error
