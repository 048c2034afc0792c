#!/usr/bin/python
# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Module host_facts: the one picture of a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_facts
short_description: Read everything the fleet's roles decide on
version_added: 0.1.0
description:
  - Reads the state of the NVIDIA driver, its module options as modprobe and the kernel resolve
    them, the options inside each initramfs image, GDRCopy, NVSHMEM copies, CUDA, the GPUs on the
    PCI bus and the present boot.
  - Changes nothing, loads nothing, and needs nothing but Python's standard library on the host.
options:
  root:
    description: Directory that holds the host's file tree.
    type: path
    default: /
  require_options:
    description:
      - Hold the options of an image to be needed even when the image has no C(nvidia.ko).
      - Without it such an image is C(not_needed).
    type: bool
    default: false
  nvshmem_prefix:
    description: Directory of the C(nvshmem) role's copies, one directory a version.
    type: path
    default: /opt/epfleet/nvshmem
attributes:
  check_mode:
    support: full
    description: Reads in check mode as it does otherwise.
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
- name: Read the host
  epfleet.expert_parallel.host_facts:

- name: Say which kernels have a stale image
  ansible.builtin.debug:
    msg: "{{ ansible_facts['epfleet']['initramfs'] | selectattr('state', 'eq', 'stale') }}"
"""

RETURN = r"""
ansible_facts:
  description: The facts, added to the host's own.
  returned: success
  type: dict
  contains:
    epfleet:
      description: The picture of the host.
      returned: success
      type: dict
      contains:
        os:
          description: Distribution C(id), C(version_id) and C(family).
          returned: always
          type: dict
        kernel:
          description: Running C(release), its C(cmdline), and the C(installed) releases.
          returned: always
          type: dict
        nvidia:
          description:
            - GPUs, whether the module is loaded, driver version and flavour, the loaded module's
              C(params) (null when not loaded), and what C(modprobe) would give a load.
          returned: always
          type: dict
        initramfs:
          description:
            - One entry per image with C(kernel), C(path), C(tool), C(state) and C(evidence).
            - The state is C(not_needed), C(current), C(stale) or C(unknown).
          returned: always
          type: list
          elements: dict
        gdrdrv:
          description: GDRCopy's module, device node and library.
          returned: always
          type: dict
        nvshmem:
          description: NVSHMEM copies with C(path), C(version) and C(cuda_major).
          returned: always
          type: list
          elements: dict
        cuda:
          description: Driver version, CUDA C(major) to serve, compiler path and toolkit version.
          returned: always
          type: dict
        boot:
          description: C(boot_id) and C(boot_time) (seconds since 1970).
          returned: always
          type: dict
        secure_boot:
          description: Whether the firmware enforces signatures; null when it does not say.
          returned: always
          type: bool
        changes:
          description: Boot in which the roles last changed what a boot reads; null when never.
          returned: always
          type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.facts import (
    gather,
)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/"},
            "require_options": {"type": "bool", "default": False},
            "nvshmem_prefix": {"type": "path", "default": "/opt/epfleet/nvshmem"},
        },
        supports_check_mode=True,
    )
    params = module.params
    facts = gather(params["root"], params["require_options"], params["nvshmem_prefix"])
    module.exit_json(changed=False, ansible_facts={"epfleet": facts})


if __name__ == "__main__":
    main()
