#!/usr/bin/python
# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Module driver_reload: give the NVIDIA driver its new options without a reboot."""

from __future__ import annotations

DOCUMENTATION = r"""
module: driver_reload
short_description: Unload and load the NVIDIA driver
version_added: 0.2.0
description:
  - Stops the driver's services, unloads its modules, loads those again that were loaded, and starts
    the services again. Fails when a process has a device of the driver open, before anything is
    stopped.
  - Makes sure that the device nodes still have the major numbers of the modules, which get new ones
    at each load.
attributes:
  check_mode:
    support: full
    description: Says that the driver would be loaded anew.
  diff_mode:
    support: none
    description: The loaded options are shown by M(epfleet.expert_parallel.host_facts).
  platform:
    support: full
    description: Linux hosts.
    platforms: linux
author:
  - The epfleet authors (@epfleet)
"""

EXAMPLES = r"""
- name: Load the driver anew
  epfleet.expert_parallel.driver_reload:
"""

RETURN = r"""
modules:
  description: The modules that were loaded again, in their order.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import reload
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.root import (
    HostRoot,
)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    host = HostRoot()
    if module.check_mode:
        module.exit_json(changed=True, modules=reload.loaded(host))
    try:
        modules = reload.reload(host, module.run_command)
    except reload.ReloadError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=True, modules=modules)


if __name__ == "__main__":
    main()
