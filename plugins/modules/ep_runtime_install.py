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
  - In an environment that was there before, no other package is changed; what can't be installed
    without that is an error. Packages that were added go with the runtime.
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
  drop_in:
    description:
      - Whether C(deep_ep), for programs written for DeepEP, is installed, too.
      - Refused where another distribution brings a C(deep_ep).
    type: bool
    default: false
  prebuilt:
    description: The runtime's wheel on the controller, when it was not built there.
    type: path
  version:
    description: The runtime's version that pip is to take from its index, in place of a wheel.
    type: str
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
  drop_in_wheel:
    description: The wheel of C(deep_ep) on the host. Set by the action.
    type: path
  drop_in_payload:
    description: Digest of that wheel's content. Set by the action.
    type: str
  drop_in_check:
    description: The program that looks for another C(deep_ep). Set by the action.
    type: str
  act:
    description: Whether to install what is missing, or only to say so. Set by the action.
    type: bool
    default: false
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
import glob
import os
import shutil
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.exclusive import exclusive
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.full_disk import (
    FullDiskError,
    explained,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.url_passwords import hide
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.venv_packages import (
    constraints,
    pip_problems,
    unneeded,
    versions,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.venv_undo import Undo
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_venv import (
    DISTRIBUTION,
    DROP_IN,
    MARKER,
    VenvError,
    build_info,
    clean_environment,
    discard_pip,
    inspect_environment,
    inspect_venv,
    pip,
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
_ASK_OTHERS = "\nimport sys\nprint(refusal(sys.path) or '')"
OURS = (DISTRIBUTION, DROP_IN)
# pip's downloads and the files it unpacks; beside the packages, since /tmp is often small.
_TEMPORARY = ".epfleet-tmp-"


class Installation:
    """One virtual environment and what shall be in it."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given
        self.venv: str = given["venv"]
        self.python = venv_python(self.venv)
        self.added: list[str] = []
        self.temporary = ""
        self.was_there = os.path.exists(self.venv)

    def inspect(self) -> dict[str, Any]:
        return inspect_venv(self.venv, self.given["requirements"], self.given["extras"])

    def reasons(self, state: dict[str, Any]) -> list[str]:
        given = self.given
        return why_install(
            state, given["key"], given["payload"], given["drop_in"], given["drop_in_payload"]
        )

    def pip_install(self, *wanted: str) -> None:
        more = self.given["pip_args"]
        pip(self.python, ["install"], more, list(wanted), _PIP_TIMEOUT_S, self.variables())

    def pip_uninstall(self, *names: str) -> None:
        pip(self.python, ["uninstall", "--yes"], [], list(names), _PIP_TIMEOUT_S, self.variables())

    def variables(self) -> dict[str, str]:
        return {"TMPDIR": self.temporary} if self.temporary else {}

    def create(self) -> None:
        """Make the environment, or complete one whose making was cut short."""
        own = not self.was_there or bool(read_marker(self.venv).get("created"))
        about = inspect_environment(self.venv)
        if about is not None and not pip_is_whole(about):
            discard_pip(about)
        if own:
            write_marker(self.venv, {"created": True})
        run(
            [self.given["python"], "-m", "venv", self.venv],
            timeout_s=_PIP_TIMEOUT_S,
            environment={**clean_environment(), **self.variables()},
        )

    def install(self, state: dict[str, Any]) -> None:
        """Install all, or leave the environment as it was."""
        for path in glob.glob(os.path.join(glob.escape(self.venv), _TEMPORARY + "*")):
            shutil.rmtree(path)  # of a run that was killed
        site_packages = state["python"]["site_packages"] if state["python"] else None
        undo = Undo(self.venv, site_packages, OURS)
        try:
            os.makedirs(self.venv, mode=0o755, exist_ok=True)
            self.temporary = tempfile.mkdtemp(prefix=_TEMPORARY, dir=self.venv)
            self.install_all(state)
        except (VenvError, OSError) as error:
            told = explained(
                error,
                "installing the runtime",
                self.venv,
                "free some there, or set ep_runtime_venv to a folder of a larger disk",
            )
            undo.back()
            raise told from error
        finally:
            shutil.rmtree(self.temporary, ignore_errors=True)
            self.temporary = ""

    def install_all(self, state: dict[str, Any]) -> None:
        foreign = state["python"] is not None and not state["marker"].get("created")
        if state["python"] is None:
            self.create()
        about = inspect_environment(self.venv)
        if about is None:
            raise VenvError(f"{self.python} does not run as a virtual environment's interpreter")
        self.refuse_other_deep_ep()
        for path in torn_distributions(about["site_packages"]):
            shutil.rmtree(path)
        before, problems = versions(self.python), pip_problems(self.python)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as kept:
            if foreign:
                kept.write(constraints(before, OURS))
                kept.flush()
            self.install_wheels(["--constraint", kept.name] if foreign else [])
        added = sorted(set(versions(self.python)) - set(before) - set(OURS))
        self.added = sorted({*state["marker"].get("added", []), *(added if foreign else [])})
        new = [line for line in pip_problems(self.python) if line not in problems]
        if new:
            raise VenvError("pip check says: {}".format("; ".join(new)))

    def install_wheels(self, kept: list[str]) -> None:
        given = self.given
        extras, version = given["extras"], given["version"]
        options = f"[{','.join(extras)}]" if extras else ""
        if version:
            kept = [*kept, "--only-binary", ",".join(OURS)]
            wheels = [f"{name}=={version}" for name in OURS]
            named = [f"{DISTRIBUTION}{options}=={version}"]
        else:
            wheels = [given["wheel"], given["drop_in_wheel"]]
            named = [given["wheel"] + options]
        if given["drop_in"]:
            named.append(wheels[1])
        elif self.inspect()["drop_in"] is not None:
            self.pip_uninstall(DROP_IN)
        self.pip_install(*kept, *given["requirements"], *named)
        # The last step: another build of the same version, which pip has let be until here.
        state = self.inspect()
        known = [(wheels[0], state["installed"], given["payload"])]
        if given["drop_in"]:
            known.append((wheels[1], state["drop_in"], given["drop_in_payload"]))
        replaced = [
            wheel
            for wheel, found, payload in known
            if found is not None and found["payload"] != payload
        ]
        if replaced:
            self.pip_install(*kept, "--no-deps", "--force-reinstall", *replaced)
        if version:
            # The bytes of an index's wheel are known only now.
            state = self.inspect()
            for found, name in (("installed", "payload"), ("drop_in", "drop_in_payload")):
                given[name] = state[found]["payload"] if state[found] else None

    def refuse_other_deep_ep(self) -> None:
        """Two distributions of one module overwrite each other's files."""
        if self.given["drop_in"] and self.given["drop_in_check"]:
            check = self.given["drop_in_check"] + _ASK_OTHERS
            reason = run([self.python, "-I", "-c", check]).strip()
            if reason:
                raise VenvError(reason)

    def build_info(self) -> dict[str, Any]:
        return build_info(self.python, self.given["drop_in"])

    def note(self, state: dict[str, Any]) -> None:
        noted = {
            "created": bool(state["marker"].get("created")),
            "key": self.given["key"],
            "source": self.given["source"],
            "version": state["installed"]["version"],
            "payload": state["installed"]["payload"],
            "drop_in": state["drop_in"]["payload"] if state["drop_in"] else None,
            "added": self.added,
        }
        if noted != state["marker"]:
            write_marker(self.venv, noted)


def describe(state: dict[str, Any]) -> str:
    """What ``--diff`` shows of a virtual environment."""
    if state["installed"] is None:
        return "ep-runtime absent\n"
    return "ep-runtime {} ({}){}\n".format(
        state["installed"]["version"],
        state["marker"].get("key", "of unknown origin"),
        " with deep_ep" if state["drop_in"] else "",
    )


def present(module: AnsibleModule) -> None:
    target = Installation(module.params)
    if target.given["act"] and not module.check_mode:
        with exclusive(os.path.dirname(os.path.abspath(target.venv))):
            act(module, target)
    look(module, target, target.inspect())


def look(module: AnsibleModule, target: Installation, before: dict[str, Any]) -> None:
    """Say what is to do; where it is nothing, also that it works. Ends the module."""
    reasons = target.reasons(before)
    result = outcome(target, before, reasons)
    if not reasons:
        result["build_info"] = target.build_info()
    module.exit_json(**result)


def outcome(target: Installation, before: dict[str, Any], reasons: list[str]) -> dict[str, Any]:
    wanted = " with deep_ep" if target.given["drop_in"] else ""
    after = f"ep-runtime ({target.given['key']}){wanted}\n" if reasons else describe(before)
    return {
        "changed": bool(reasons),
        "reasons": reasons,
        "diff": {"before": describe(before), "after": after},
    }


def act(module: AnsibleModule, target: Installation) -> None:
    """Install what is missing, unless somebody has while this waited. Ends the module."""
    before = target.inspect()
    reasons = target.reasons(before)
    if not reasons:
        look(module, target, before)
    target.install(before)
    state = target.inspect()
    wrong = [r for r in target.reasons(state) if not r.endswith("has not been verified")]
    if wrong:
        raise VenvError("after the installation {}".format("; ".join(wrong)))
    info = target.build_info()
    target.note(state)
    module.exit_json(build_info=info, **outcome(target, before, reasons))


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
            installed = [name for name in OURS if name in versions(target.python)]
            added = marker.get("added", [])
            target.pip_uninstall(*unneeded(target.python, installed, added))
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
            "pip_args": {"type": "list", "elements": "str", "default": [], "no_log": True},
            "key": {"type": "str", "no_log": False},
            "source": {"type": "str"},
            "cache": {"type": "path"},
            "prebuilt": {"type": "path"},
            "version": {"type": "str"},
            "wheel": {"type": "path"},
            "payload": {"type": "str"},
            "drop_in": {"type": "bool", "default": False},
            "drop_in_wheel": {"type": "path"},
            "drop_in_payload": {"type": "str"},
            "drop_in_check": {"type": "str"},
            "act": {"type": "bool", "default": False},
        },
        required_if=[("state", "present", ("key", "source", "cache"))],
        supports_check_mode=True,
    )
    os.umask(0o022)  # whatever the operator's is: others read what is made, and never write it
    hide(module, module.params["pip_args"])
    try:
        present(module) if module.params["state"] == "present" else absent(module)
    except FullDiskError as error:
        module.fail_json(msg=str(error))
    except (VenvError, OSError) as error:
        module.fail_json(msg=f"The runtime in {module.params['venv']} is not right: {error}")


if __name__ == "__main__":
    main()
