#!/usr/bin/python
# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Module boot_change: record that what a boot reads changes in this boot."""

from __future__ import annotations

DOCUMENTATION = r"""
module: boot_change
short_description: Record the boot in which something that a boot reads changes
version_added: 0.2.0
description:
  - Writes the present boot's id to C(/var/lib/epfleet/changes.json). The C(reboot) role tells by it
    whether a host has booted since. Run it before the change, so that a run killed in between
    leaves a record and not a gap.
  - Never reports a change of its own; the task of the change itself does.
attributes:
  check_mode:
    support: full
    description: Writes nothing.
  diff_mode:
    support: none
    description: The boot's id says nothing to a reader.
  platform:
    support: full
    description: Linux hosts.
    platforms: linux
author:
  - The epfleet authors (@epfleet)
"""

EXAMPLES = r"""
- name: Record that this boot came before the change
  epfleet.expert_parallel.boot_change:
"""

RETURN = r"""# """

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.root import (
    HostRoot,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.record import note_boot


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    if not module.check_mode:
        note_boot(HostRoot())
    module.exit_json(changed=False)


if __name__ == "__main__":
    main()
