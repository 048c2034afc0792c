#!/usr/bin/python
# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Module unpacked_wheel: the content of one wheel at a place of its own."""

from __future__ import annotations

DOCUMENTATION = r"""
module: unpacked_wheel
short_description: Unpack a wheel, without what it requires, to a place of its own
version_added: 0.2.0
description:
  - Has pip unpack one wheel to O(dest), which appears in one step or not at all; what was there is
    replaced. Whether that is needed is for the caller to decide.
  - Passwords in the addresses of O(pip_args) are neither shown nor in the command line of pip.
options:
  requirement:
    description: The wheel, as pip names it.
    type: str
    required: true
  dest:
    description: The folder to make.
    type: path
    required: true
  python:
    description: The interpreter whose pip is used.
    type: path
    required: true
  pip_args:
    description: More arguments for pip.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    support: full
    description: Says that the folder would be made, and fetches nothing.
  diff_mode:
    support: none
    description: The content is large.
  platform:
    support: full
    description: Linux hosts.
    platforms: linux
author:
  - The epfleet authors (@epfleet)
"""

EXAMPLES = r"""
- name: Unpack NVSHMEM
  epfleet.expert_parallel.unpacked_wheel:
    requirement: nvidia-nvshmem-cu13==3.4.5
    dest: /opt/epfleet/nvshmem/3.4.5
    python: /opt/epfleet/nvshmem/.tools/bin/python
"""

RETURN = r"""# """

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.full_disk import explained
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.new_tree import (
    put_in_place,
    working_beside,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.url_passwords import hide
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_venv import (
    VenvError,
    pip,
)

_TIMEOUT_S = 3600


def unpack(python: str, requirement: str, dest: str, pip_args: list[str]) -> None:
    """Put the wheel at ``dest``. Raises VenvError or OSError with what was there still there."""
    parent = os.path.dirname(dest)
    with working_beside(dest) as work:
        try:
            tree = os.path.join(work, "tree")
            install = ["install", "--no-deps", "--only-binary", ":all:", "--target", tree]
            pip(python, install, pip_args, [requirement], _TIMEOUT_S, {"TMPDIR": work})
            put_in_place(tree, dest)
        except (VenvError, OSError) as error:
            remedy = "free some there, or choose another folder"
            raise explained(error, f"unpacking {requirement}", parent, remedy) from error


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "requirement": {"type": "str", "required": True},
            "dest": {"type": "path", "required": True},
            "python": {"type": "path", "required": True},
            "pip_args": {"type": "list", "elements": "str", "default": [], "no_log": True},
        },
        supports_check_mode=True,
    )
    given = module.params
    os.umask(0o022)  # whatever the operator's is: others read what is made, and never write it
    hide(module, given["pip_args"])
    if not module.check_mode:
        try:
            unpack(given["python"], given["requirement"], given["dest"], given["pip_args"])
        except (VenvError, OSError) as error:
            module.fail_json(msg=f"{given['requirement']} can't be unpacked: {error}")
    module.exit_json(changed=True)


if __name__ == "__main__":
    main()
