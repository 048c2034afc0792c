#!/usr/bin/python
# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: ep_runtime_install
short_description: Install the ep_runtime wheel into a virtual environment and prove that it works
version_added: 0.1.0
description:
  - Makes the virtual environment, installs the wheel from the controller with its requirements,
    compares the installed files with those of the wheel, and imports the runtime.
  - What to do is decided by what the environment holds, so an interrupted run is completed by the
    next one, and a complete installation is left alone.
author:
  - The epfleet authors (@epfleet)
options:
  state:
    description: Whether the runtime is to be installed or not.
    type: str
    choices: [present, absent]
    default: present
  venv:
    description: The virtual environment.
    type: path
    required: true
  python:
    description: The interpreter that a new virtual environment is made from.
    type: str
    default: python3
  requirements:
    description: Requirements, beside the runtime's own, that the environment shall meet.
    type: list
    elements: str
    default: []
  extras:
    description: Extras of the runtime to install.
    type: list
    elements: str
    default: []
  pip_args:
    description: More arguments for pip.
    type: list
    elements: str
    default: []
  key:
    description: The key of the wheel, from M(epfleet.expert_parallel.ep_runtime_plan).
    type: str
  source:
    description: Digest of the source that the wheel is built from.
    type: str
  cache:
    description: The cache's directory on the controller.
    type: path
  wheel:
    description: The wheel on the host. Set by the action.
    type: path
  payload:
    description: Digest of the wheel's content. Set by the action.
    type: str
attributes:
  check_mode:
    description: Says what it would do without doing it.
    support: full
  diff_mode:
    description: Shows the installed build before and after.
    support: full
"""

EXAMPLES = r"""
- name: Install the runtime
  epfleet.expert_parallel.ep_runtime_install:
    venv: /opt/epfleet/venv
    requirements: ["torch>=2.4"]
    key: "{{ plan.key }}"
    source: "{{ plan.inputs.source }}"
    cache: ~/.cache/epfleet/wheels
"""

RETURN = r"""
reasons:
  description: Why something was to do; empty when the environment was right.
  returned: when state is present
  type: list
  elements: str
build_info:
  description: What the installed runtime says of itself.
  returned: when state is present, not when check mode would change something
  type: dict
"""

import contextlib
import json
import os
import shutil

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_venv import (
    DISTRIBUTION,
    MARKER,
    VenvError,
    discard_pip,
    inspect_environment,
    inspect_venv,
    pip_is_whole,
    read_marker,
    run,
    torn_distributions,
    venv_python,
    why_install,
    write_marker,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PIP_TIMEOUT_S = 3600
_ASK_BUILD_INFO = "import ep_runtime, json; print(json.dumps(ep_runtime.build_info()))"


class Installation:
    """One virtual environment and what shall be in it."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given
        self.venv: str = given["venv"]
        self.python = venv_python(self.venv)

    def inspect(self) -> dict[str, Any]:
        return inspect_venv(self.venv, self.given["requirements"], self.given["extras"])

    def reasons(self, state: dict[str, Any]) -> list[str]:
        return why_install(state, self.given["key"], self.given["payload"])

    def pip(self, *arguments: str) -> None:
        run(
            [self.python, "-m", "pip", "--no-input", "--disable-pip-version-check", *arguments],
            timeout_s=_PIP_TIMEOUT_S,
        )

    def create(self) -> None:
        """Make the environment, or complete one whose making was cut short."""
        own = not os.path.exists(self.venv) or bool(read_marker(self.venv).get("created"))
        os.makedirs(self.venv, mode=0o755, exist_ok=True)
        about = inspect_environment(self.venv)
        if about is not None and not pip_is_whole(about):
            discard_pip(about)
        if own:
            write_marker(self.venv, {"created": True})
        run([self.given["python"], "-m", "venv", self.venv], timeout_s=_PIP_TIMEOUT_S)

    def install(self, state: dict[str, Any]) -> None:
        if state["python"] is None:
            self.create()
        about = inspect_environment(self.venv)
        if about is None:
            raise VenvError(f"{self.python} does not run as a virtual environment's interpreter")
        for path in torn_distributions(about["site_packages"]):
            shutil.rmtree(path)
        more, wheel, extras = self.given["pip_args"], self.given["wheel"], self.given["extras"]
        installed = self.inspect()["installed"]
        if installed is not None and installed["payload"] != self.given["payload"]:
            self.pip("install", *more, "--no-deps", "--force-reinstall", wheel)
        named = f"{wheel}[{','.join(extras)}]" if extras else wheel
        self.pip("install", *more, *self.given["requirements"], named)

    def build_info(self) -> dict[str, Any]:
        """Import the runtime as a program would."""
        answer: dict[str, Any] = json.loads(run([self.python, "-I", "-c", _ASK_BUILD_INFO]))
        return answer

    def note(self, state: dict[str, Any]) -> None:
        noted = {
            "created": bool(state["marker"].get("created")),
            "key": self.given["key"],
            "source": self.given["source"],
            "version": state["installed"]["version"],
            "payload": state["installed"]["payload"],
        }
        if noted != state["marker"]:
            write_marker(self.venv, noted)


def describe(state: dict[str, Any]) -> str:
    """What ``--diff`` shows of a virtual environment."""
    if state["installed"] is None:
        return "ep-runtime absent\n"
    return "ep-runtime {} ({})\n".format(
        state["installed"]["version"], state["marker"].get("key", "of unknown origin")
    )


def present(module: AnsibleModule) -> None:
    target = Installation(module.params)
    before = target.inspect()
    reasons = target.reasons(before)
    after = f"ep-runtime ({target.given['key']})\n" if reasons else describe(before)
    result = {
        "changed": bool(reasons),
        "reasons": reasons,
        "diff": {"before": describe(before), "after": after},
    }
    if reasons and (module.check_mode or target.given["wheel"] is None):
        # Without a wheel the action comes again with one.
        module.exit_json(**result)
    if reasons:
        target.install(before)
        state = target.inspect()
        wrong = [
            reason
            for reason in target.reasons(state)
            if reason != "the installed ep-runtime has not been verified"
        ]
        if wrong:
            raise VenvError("after the installation {}".format("; ".join(wrong)))
        info = target.build_info()
        target.note(state)
    else:
        info = target.build_info()
    module.exit_json(build_info=info, **result)


def absent(module: AnsibleModule) -> None:
    target = Installation(module.params)
    marker = read_marker(target.venv)
    owned = bool(marker.get("created"))
    state = target.inspect()
    changed = owned or state["installed"] is not None
    diff = {"before": describe(state), "after": "ep-runtime absent\n"}
    if changed and not module.check_mode:
        if owned:
            shutil.rmtree(target.venv)
        else:
            for path in torn_distributions(state["python"]["site_packages"]):
                shutil.rmtree(path)
            target.pip("uninstall", "--yes", DISTRIBUTION)
    if not module.check_mode:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(target.venv, MARKER))
    module.exit_json(changed=changed, diff=diff)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "venv": {"type": "path", "required": True},
            "python": {"type": "str", "default": "python3"},
            "requirements": {"type": "list", "elements": "str", "default": []},
            "extras": {"type": "list", "elements": "str", "default": []},
            "pip_args": {"type": "list", "elements": "str", "default": []},
            "key": {"type": "str", "no_log": False},
            "source": {"type": "str"},
            "cache": {"type": "path"},
            "wheel": {"type": "path"},
            "payload": {"type": "str"},
        },
        required_if=[("state", "present", ("key", "source", "cache"))],
        supports_check_mode=True,
    )
    try:
        present(module) if module.params["state"] == "present" else absent(module)
    except (VenvError, OSError) as error:
        module.fail_json(msg=f"The runtime in {module.params['venv']} is not right: {error}")


if __name__ == "__main__":
    main()
