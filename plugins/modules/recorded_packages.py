#!/usr/bin/python
# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Module recorded_packages: install packages, and take back exactly what that brought."""

from __future__ import annotations

DOCUMENTATION = r"""
module: recorded_packages
short_description: Install packages so that they can be taken back
version_added: 0.2.0
description:
  - Installs what is missing, and keeps in C(/var/lib/epfleet/record.json) on the host which
    packages came with it and which versions were there before.
  - With O(state=absent) it removes what came and puts back the versions that were changed. It
    refuses when a package that these roles did not install would have to go too.
  - A package that someone else holds at its version is not changed; the module fails before any
    change and names it.
  - A driver package whose kernel module does not build fails with the compiler's first error.
options:
  owner:
    description: In whose name packages are recorded; the role's.
    type: str
    required: true
  name:
    description: Packages, C(NAME) or C(NAME=VERSION).
    type: list
    elements: str
    default: []
  state:
    description: Whether the packages are there.
    type: str
    choices: [present, absent]
    default: present
  repository:
    description:
      - A folder on the host, or a URL, with a repository to install from beside the host's own; an
        apt repository there is flat. The host's configuration is not changed.
    type: str
    default: ""
  affects_boot:
    description: Record that what a boot reads changed in this boot, as the C(reboot) role expects.
    type: bool
    default: false
  hold:
    description: Keep the named packages at their versions.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Says what is missing, or what would be removed, and changes nothing.
  diff_mode:
    support: full
    description: Shows the packages' versions before and after; in check mode without dependencies.
  platform:
    support: full
    description: Hosts with apt, dnf or zypper.
    platforms: linux
author:
  - The epfleet authors (@epfleet)
"""

EXAMPLES = r"""
- name: Install the driver
  epfleet.expert_parallel.recorded_packages:
    owner: nvidia_driver
    name: [nvidia-open]
    hold: true

- name: Take it back
  epfleet.expert_parallel.recorded_packages:
    owner: nvidia_driver
    state: absent
"""

RETURN = r"""
packages:
  description: Packages that changed, with their versions before; null for one that was not there.
  returned: success
  type: dict
"""

import time
from typing import Any, Dict, List, Optional, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import (
    dkms,
    packages,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import (
    package_holds as holds,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host import procfs
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.root import (
    HostRoot,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.record import (
    Record,
    RecordError,
    note_boot,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.url_passwords import hide

Changes = Dict[str, Optional[str]]


def _lines(versions: Dict[str, Optional[str]]) -> str:
    return "".join(f"{name} {version or 'absent'}\n" for name, version in sorted(versions.items()))


def _present(module: AnsibleModule, host: HostRoot, record: Record, run: Any) -> Tuple[bool, Any]:
    params = module.params
    family = procfs.operating_system(host)["family"]
    tools = packages.manager(family)
    have = packages.installed(tools, run)
    lacking = packages.missing(params["name"], have)
    names = [item.partition("=")[0] for item in params["name"]]
    unheld: List[str] = []
    if lacking and module.check_mode:
        # The index of a repository beside the host's own is read in a real run only.
        own = not params["repository"]
        holds.refuse_installation(tools, record, lacking, have, run, simulate=own)
    if params["hold"]:
        before = record.section("packages").get(params["owner"], {}).get("held", [])
        held = {*holds.held(tools, run), *(before if family != "debian" else [])}
        unheld = [name for name in names if name not in held]
    changes: Changes = {
        item.partition("=")[0]: have.get(item.partition("=")[0]) for item in lacking
    }
    if not module.check_mode:
        if lacking:
            changes = _install(host, tools, record, params, lacking, run)
            # apt forgets the hold of a package that it changes.
            unheld = names if params["hold"] else []
        if unheld:
            packages.hold(tools, record, params["owner"], unheld, run)
    return bool(lacking or unheld), changes


def _install(
    host: HostRoot,
    tools: packages.Manager,
    record: Record,
    params: Dict[str, Any],
    lacking: List[str],
    run: Any,
) -> Changes:
    begin = time.time()
    try:
        with packages.with_repository(tools, params["repository"], run) as sources:
            have = packages.installed(tools, run)
            holds.refuse_installation(sources, record, lacking, have, run, simulate=True)
            if params["affects_boot"]:
                note_boot(host)
            return packages.install(sources, record, params["owner"], lacking, run)
    except packages.PackageError as error:
        builds = dkms.failures(host, begin)
        told = "".join(f"{name} does not build: {what}. " for name, what in builds.items())
        raise packages.PackageError(told + str(error)) from error


def _absent(module: AnsibleModule, host: HostRoot, record: Record, run: Any) -> Tuple[bool, Any]:
    owner = module.params["owner"]
    if owner not in record.section("packages"):
        return False, {}
    tools = packages.manager(procfs.operating_system(host)["family"])
    plan = packages.removal(tools, record, owner, run)
    have = packages.installed(tools, run)
    holds.refuse_removal(tools, record, plan, have, run)
    changed = bool(plan["remove"] or plan["restore"])
    names = [*plan["remove"], *(item.partition("=")[0] for item in plan["restore"])]
    if not module.check_mode:
        if changed and module.params["affects_boot"]:
            note_boot(host)
        with packages.with_repository(
            tools, module.params["repository"] if plan["restore"] else "", run
        ) as sources:
            packages.take_back(sources, record, owner, plan, run)
    return changed, {name: have.get(name) for name in names}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "owner": {"type": "str", "required": True},
            "name": {"type": "list", "elements": "str", "default": []},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "repository": {"type": "str", "default": "", "no_log": True},
            "affects_boot": {"type": "bool", "default": False},
            "hold": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    module.run_command_environ_update = {
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
    }
    hide(module, [module.params["repository"]])
    host = HostRoot()
    act = _present if module.params["state"] == "present" else _absent
    try:
        changed, changes = act(module, host, Record(host), module.run_command)
    except (packages.PackageError, RecordError) as error:
        module.fail_json(msg=str(error))
    after = dict.fromkeys(changes, "wanted" if act is _present else None)
    if changes and not module.check_mode:
        tools = packages.manager(procfs.operating_system(host)["family"])
        now = packages.installed(tools, module.run_command)
        after = {name: now.get(name) for name in changes}
    module.exit_json(
        changed=changed,
        packages=changes,
        diff={"before": _lines(changes), "after": _lines(after)},
    )


if __name__ == "__main__":
    main()
