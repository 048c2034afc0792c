#!/usr/bin/python
# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Module recorded_service: enable a unit of someone else's package so that it can be taken back."""

from __future__ import annotations

DOCUMENTATION = r"""
module: recorded_service
short_description: Enable a unit so that it can be put back
version_added: 0.2.0
description:
  - Enables a unit that a package brought, and starts it by choice. What it was before is kept in
    C(/var/lib/epfleet/record.json) on the host; O(state=absent) puts that back.
options:
  owner:
    description: In whose name the unit is recorded; the role's.
    type: str
    required: true
  name:
    description: The unit. Needed to enable one; O(state=absent) puts back all of the owner's.
    type: str
  package:
    description: What brings the unit, for the message when it is not there.
    type: str
    default: its package
  started:
    description: Start it now, too. Without it the next boot does.
    type: bool
    default: true
  expected:
    description: In check mode, the unit is to be there in a run outside of it.
    type: bool
    default: false
  state:
    description: Whether the unit is in force.
    type: str
    choices: [present, absent]
    default: present
attributes:
  check_mode:
    support: full
    description: Says whether a unit would be enabled, started or put back.
  diff_mode:
    support: full
    description: Shows what the service manager says of the unit.
  platform:
    support: full
    description: Hosts with systemd.
    platforms: linux
author:
  - The epfleet authors (@epfleet)
"""

EXAMPLES = r"""
- name: Enable the persistence daemon
  epfleet.expert_parallel.recorded_service:
    owner: nvidia_driver
    name: nvidia-persistenced.service
    package: nvidia-persistenced

- name: Put back what it was
  epfleet.expert_parallel.recorded_service:
    owner: nvidia_driver
    state: absent
"""

RETURN = r"""# """

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import services
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.root import (
    HostRoot,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.record import (
    Record,
    RecordError,
)


def _told(unit: str, state: services.State) -> str:
    return f"{unit}: {state.enabled or 'absent'}, {'active' if state.active else 'inactive'}\n"


def _present(module: AnsibleModule, record: Record) -> None:
    params, run = module.params, module.run_command
    unit = params["name"]
    before = services.state(unit, run)
    if not before.exists and not module.check_mode:
        # Not every package tells the service manager of the unit that it brings.
        run(["systemctl", "daemon-reload"], check_rc=True)
        before = services.state(unit, run)
    if not before.exists and module.check_mode and params["expected"]:
        module.exit_json(changed=True, diff={"before": _told(unit, before), "after": "enabled\n"})
    if not before.exists or before.enabled == "masked":
        why = "is masked" if before.exists else "is not on this host"
        raise services.ServiceError(
            f"{unit} {why}; install {params['package']} (variable nvidia_driver_packages, say), or"
            f" `systemctl unmask {unit}`."
        )
    actions = services.lacking(before, params["started"])
    if actions and not module.check_mode:
        services.put_in_force(record, params["owner"], unit, before, run)
        if "start" in actions:
            services.start(unit, run)
    module.exit_json(
        changed=bool(actions),
        diff={"before": _told(unit, before), "after": f"{unit}: {' and '.join(actions)}\n"},
    )


def _absent(module: AnsibleModule, record: Record) -> None:
    owned = services.owned(record, module.params["owner"])
    before = "".join(_told(unit, services.state(unit, module.run_command)) for unit in owned)
    if owned and not module.check_mode:
        services.give_back(record, module.params["owner"], module.run_command)
    module.exit_json(changed=bool(owned), diff={"before": before, "after": "as before the role\n"})


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "owner": {"type": "str", "required": True},
            "name": {"type": "str"},
            "package": {"type": "str", "default": "its package"},
            "started": {"type": "bool", "default": True},
            "expected": {"type": "bool", "default": False},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        required_if=[("state", "present", ("name",))],
        supports_check_mode=True,
    )
    act = _present if module.params["state"] == "present" else _absent
    try:
        act(module, Record(HostRoot()))
    except (services.ServiceError, RecordError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
