#!/usr/bin/python
# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Module gdrcopy_sanity: try GDRCopy on a GPU."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gdrcopy_sanity
short_description: Try GDRCopy on a GPU
version_added: 0.2.0
description:
  - Runs GDRCopy's own test, C(gdrcopy_sanity), once for each driver, module, library and program. A
    failure is reported by its first failing test.
  - Where the program is not installed the module warns and succeeds.
attributes:
  check_mode:
    support: full
    description: Runs nothing.
  diff_mode:
    support: none
    description: Nothing of the host changes.
  platform:
    support: full
    description: Linux hosts with a GPU and GDRCopy.
    platforms: linux
author:
  - The epfleet authors (@epfleet)
"""

EXAMPLES = r"""
- name: Try GDRCopy on a GPU
  epfleet.expert_parallel.gdrcopy_sanity:
"""

RETURN = r"""
result:
  description:
    - C(passed) now, C(known) to have passed before, C(absent) (no program), or C(skipped) in check
      mode.
  returned: success
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import gdrcopy_sanity
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.root import (
    HostRoot,
)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    host = HostRoot()
    path = gdrcopy_sanity.program(host)
    if module.check_mode:
        module.exit_json(changed=False, result="skipped")
    if path is None:
        module.warn(
            "GDRCopy was not tried on a GPU: gdrcopy_sanity is not installed. Install the package"
            " gdrcopy-tests, or a CUDA toolkit where GDRCopy is built from source."
        )
        module.exit_json(changed=False, result="absent")
    tested = gdrcopy_sanity.subject(host, path)
    if gdrcopy_sanity.has_passed(host, tested):
        module.exit_json(changed=False, result="known")
    try:
        gdrcopy_sanity.run_tests(host, path, tested, module.run_command)
    except gdrcopy_sanity.SanityError as error:
        module.fail_json(
            msg=f"GDRCopy is installed and does not work on this host's GPU: {error}. Run {path} by"
            " hand for all of it, and read `dmesg | grep gdrdrv`; module, library and driver must"
            " fit each other."
        )
    module.exit_json(changed=False, result="passed")


if __name__ == "__main__":
    main()
