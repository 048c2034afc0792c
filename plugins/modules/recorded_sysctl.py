#!/usr/bin/python
# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Module recorded_sysctl: kernel settings that can be taken back."""

from __future__ import annotations

DOCUMENTATION = r"""
module: recorded_sysctl
short_description: Set kernel settings so that they can be taken back
version_added: 0.2.0
description:
  - Sets kernel settings now, and at each boot by a file in C(/etc/sysctl.d). The values of before
    are kept in C(/var/lib/epfleet/record.json); O(state=absent) sets them again.
options:
  path:
    description: The file, one for all settings of a role.
    type: path
    required: true
  settings:
    description: Names and values.
    type: dict
    default: {}
  state:
    description: Whether the settings are in force.
    type: str
    choices: [present, absent]
    default: present
attributes:
  check_mode:
    support: full
    description: Says whether a setting or the file would change.
  diff_mode:
    support: full
    description: Shows the live values and the file.
  platform:
    support: full
    description: Linux hosts.
    platforms: linux
author:
  - The epfleet authors (@epfleet)
"""

EXAMPLES = r"""
- name: Keep the kernel from moving pages between NUMA nodes
  epfleet.expert_parallel.recorded_sysctl:
    path: /etc/sysctl.d/90-epfleet.conf
    settings:
      kernel.numa_balancing: 0
"""

RETURN = r"""# """

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import kernel_settings
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.root import (
    HostRoot,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.record import (
    Record,
    RecordError,
)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "settings": {"type": "dict", "default": {}},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        supports_check_mode=True,
    )
    host, path = HostRoot(), module.params["path"]
    settings = {name: str(value) for name, value in module.params["settings"].items()}
    try:
        record = Record(host)
        before = host.text(path) or ""
        if module.params["state"] == "present":
            present, after = kernel_settings.live(host, settings), kernel_settings.content(settings)
            changed = present != settings or before != after
            if changed and not module.check_mode:
                kernel_settings.apply(host, record, path, settings)
        else:
            present, after = record.section("sysctl").get(path, {}), ""
            changed = bool(before or present)
            if changed and not module.check_mode:
                kernel_settings.restore(host, record, path)
    except (kernel_settings.SettingError, RecordError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=changed, diff={"before": before, "after": after})


if __name__ == "__main__":
    main()
