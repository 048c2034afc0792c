#!/usr/bin/python
# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Module gpu_users: wait until nobody uses the GPUs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_users
short_description: Make sure that no process uses the GPUs
version_added: 0.2.0
description:
  - Looks for processes that have a device of the NVIDIA driver open. Those of the driver's own
    services do not count.
  - Fails when there are some after O(wait) seconds, with their ids and names.
options:
  wait:
    description: Seconds that running work may take to end.
    type: int
    default: 0
attributes:
  check_mode:
    support: full
    description: Reads in check mode as it does otherwise, without waiting.
  diff_mode:
    support: none
    description: Nothing changes.
  platform:
    support: full
    description: Linux hosts.
    platforms: linux
author:
  - The epfleet authors (@epfleet)
"""

EXAMPLES = r"""
- name: Give running jobs an hour
  epfleet.expert_parallel.gpu_users:
    wait: 3600
"""

RETURN = r"""
users:
  description: Processes with C(pid), C(command) and C(devices).
  returned: always
  type: list
  elements: dict
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import gpu_users
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.root import (
    HostRoot,
)

_INTERVAL_S = 2.0


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"wait": {"type": "int", "default": 0}}, supports_check_mode=True
    )
    deadline = time.monotonic() + (0 if module.check_mode else module.params["wait"])
    while True:
        users = [user for user in gpu_users.find(HostRoot()) if not gpu_users.is_service(user)]
        if not users or time.monotonic() >= deadline:
            break
        time.sleep(_INTERVAL_S)
    if users and not module.check_mode:
        told = ", ".join(f"{user['command']} ({user['pid']})" for user in users[:5])
        more = f" and {len(users) - 5} more" if len(users) > 5 else ""
        module.fail_json(
            msg=f"The GPUs are in use by {told}{more}; drain the host first (reboot_before), or"
            " give the work longer to end (reboot_gpu_wait).",
            users=users,
        )
    module.exit_json(changed=False, users=users)


if __name__ == "__main__":
    main()
