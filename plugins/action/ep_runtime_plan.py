# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Decide on the controller which wheel a host needs, and whether it must be built."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_choice import (
    find_wheel,
    given_key,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_cuda import (
    choose_compiler,
    pinned_compilers,
)
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
                "cuda": {"type": "str", "choices": ["auto", "on", "off"], "default": "auto"},
                "cuda_compiler": {
                    "type": "str",
                    "choices": ["auto", "host", "pypi"],
                    "default": "auto",
                },
                "prebuilt": {"type": "path", "default": ""},
                "version": {"type": "str", "default": ""},
                "drop_in": {"type": "bool", "default": False},
            }
        )
        info = given["info"]
        if info["python"] is None and self._task.check_mode:
            # The interpreter would be installed; which one, and so which wheel, is not known yet.
            result.update(
                changed=False,
                key="unknown",
                inputs={"source": "", "cuda": None},
                cuda=None,
                reasons=list(info["venv"]["problems"]),
                build=False,
                cache_problem="",
            )
            return result
        if info["python"] is None:
            raise AnsibleActionFail(
                "No Python interpreter runs on this host: set ep_runtime_python"
            )
        elsewhere = bool(given["prebuilt"] or given["version"])
        cuda = None
        try:
            if elsewhere:
                key = given_key(given["prebuilt"], given["version"])
                inputs: dict[str, Any] = {"source": key, "cuda": None}
            else:
                content = read_source(RUNTIME)
                cuda = choose_compiler(
                    given["cuda"],
                    given["cuda_compiler"],
                    info["cuda"],
                    info["python"]["machine"],
                    pinned_compilers(content),
                )
                inputs = key_inputs(source_digest(content), info["python"], cuda)
                key = wheel_key(inputs)
            entry, problem = self._find(given, key, drop_in=False)
            drop_in, drop_in_problem = self._find(given, key, drop_in=True)
        except (OSError, ValueError) as error:
            raise AnsibleActionFail(str(error)) from error
        problem = problem or drop_in_problem
        if elsewhere and problem:
            raise AnsibleActionFail(f"ep_runtime_wheel cannot be installed: {problem}")
        reasons = why_install(
            info["venv"], key, _payload(entry), given["drop_in"], _payload(drop_in)
        )
        result.update(
            changed=False,
            key=key,
            inputs=inputs,
            cuda=cuda,
            reasons=reasons,
            build=bool(reasons and problem),
            cache_problem=problem,
        )
        return result

    def _find(
        self, given: dict[str, Any], key: str, drop_in: bool
    ) -> tuple[dict[str, Any] | None, str]:
        if given["version"] or (drop_in and not given["drop_in"]):
            return None, ""
        return find_wheel(os.path.expanduser(given["cache"]), key, given["prebuilt"], drop_in)


def _payload(entry: dict[str, Any] | None) -> str | None:
    return entry["payload"] if entry else None
