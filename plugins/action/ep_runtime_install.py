# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Bring the wheel from the controller's cache to a host, where one is needed, and install it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.epfleet.expert_parallel.plugins.action.ep_runtime_plan import RUNTIME
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_choice import find_wheel


class ActionModule(ActionBase):
    """See the documentation of the module of the same name."""

    TRANSFERS_FILES = True
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Ask the host first; send the wheel only when the host lacks it."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        given = dict(self._task.args)
        try:
            wheels, problem = {}, ""
            if given.get("state", "present") == "present":
                wheels, problem = self._wheels(given)
            given.update({f"{name}payload": wheel["payload"] for name, wheel in wheels.items()})
            answer = self._module(given, task_vars)
            if answer.get("reasons") and not answer.get("failed") and not self._task.check_mode:
                if problem:
                    raise AnsibleActionFail(
                        "There is no wheel for this host ({}): {}. If another host was to build "
                        "it, see that host's error.".format(given["key"], problem)
                    )
                sent = {name: self._send(wheel["path"]) for name, wheel in wheels.items()}
                given.update({f"{name}wheel": path for name, path in sent.items()})
                answer = self._module(dict(given, act=True), task_vars)
            result.update(answer)
        finally:
            self._remove_tmp_path(self._connection._shell.tmpdir)
        return result

    def _wheels(self, given: dict[str, Any]) -> tuple[dict[str, Any], str]:
        """The wheels by the prefix of the arguments that tell the module of them; why one lacks."""
        wanted = {"": False}
        if given.get("drop_in"):
            file = Path(RUNTIME) / "shim" / "src" / "deep_ep" / "_others.py"
            given["drop_in_check"] = file.read_text(encoding="utf-8")
            wanted["drop_in_"] = True
        if given.get("version"):
            return {}, ""
        cache = os.path.expanduser(given["cache"])
        prebuilt = os.path.expanduser(given.get("prebuilt") or "")
        found, problems = {}, []
        for name, drop_in in wanted.items():
            try:
                entry, problem = find_wheel(cache, given["key"], prebuilt, drop_in)
            except ValueError as error:
                raise AnsibleActionFail(str(error)) from error
            if entry is None:
                problems.append(problem)
            else:
                found[name] = entry
        return found, "; ".join(problems)

    def _module(
        self, arguments: dict[str, Any], task_vars: dict[str, Any] | None
    ) -> dict[str, Any]:
        answer: dict[str, Any] = self._execute_module(
            module_name="epfleet.expert_parallel.ep_runtime_install",
            module_args=arguments,
            task_vars=task_vars,
        )
        return answer

    def _send(self, wheel: str) -> str:
        shell = self._connection._shell
        if not shell.tmpdir:
            self._make_tmp_path()
        remote: str = shell.join_path(shell.tmpdir, os.path.basename(wheel))
        self._transfer_file(wheel, remote)
        self._fixup_perms2((shell.tmpdir, remote))
        return remote
