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
    them, the options inside each initramfs image, kernel modules and their builds, GDRCopy,
    NVSHMEM copies, CUDA, GPUs, RDMA devices and how near they are to each other, limits, the
    runtime's Python environment and the present boot.
  - Runs without root and then says in C(unread) what it could not read.
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
  venv:
    description: The Python environment that the runtime is installed in.
    type: path
    default: /opt/epfleet/venv
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
          description:
            - Running C(release), its C(cmdline), the C(installed) releases, the C(bootable) ones
              (with an image in /boot), the C(next) to boot with the evidence for it, the
              C(boot_arguments) that GRUB is set to pass, some options of the running kernel's
              C(config), and the C(lockdown) mode.
          returned: always
          type: dict
        nvidia:
          description:
            - C(gpus) with their PCI address, name, place on the bus, link, IOMMU type and what
              nvidia-smi says of them, whether the module is loaded, driver version and flavour, the
              loaded module's C(params) (null when not loaded), what C(modprobe) would give a load,
              C(peermem) and the files that load it at boot, device C(nodes) with their own and the
              registered major, the number of active C(nvlinks), and the C(complaint) of nvidia-smi
              when it has one.
          returned: always
          type: dict
        modules:
          description:
            - Names of the C(loaded) modules that matter, what the module files of each kernel say
              of themselves (C(installed)), and DKMS's builds and failures (C(dkms)).
          returned: always
          type: dict
        initramfs:
          description:
            - One entry per image with C(kernel), C(path), C(tool), C(state) and C(evidence).
            - The state is C(not_needed), C(current), C(stale) or C(unknown).
            - C(options) is the state that it has with O(require_options).
          returned: always
          type: list
          elements: dict
        gdrdrv:
          description: GDRCopy's module, device node and library, with their versions.
          returned: always
          type: dict
        libraries:
          description: Path and version of libmlx5, libibverbs, libcuda and libgdrapi, or null.
          returned: always
          type: dict
        nvshmem:
          description:
            - NVSHMEM copies with C(path), C(version), C(cuda_major), C(library), the C(plugins) and
              the so-version that the library loads (C(plugin_abi)), and whether C(ibgda) is in it.
          returned: always
          type: list
          elements: dict
        nvshmem_current:
          description:
            - C(version) that the role's link names and the text of its C(environment) file below
              C(prefix); null where they are missing, or the file is not root's alone to write.
          returned: always
          type: dict
        nvshmem_loaded:
          description:
            - C(path) of the NVSHMEM library that a process of the runtime's environment loads, and
              all C(candidates) that the loader could come upon.
          returned: always
          type: dict
        cuda:
          description: Driver version, CUDA C(major) to serve, compiler path and toolkit version.
          returned: always
          type: dict
        runtime:
          description: Versions of Python, torch and the runtime in the environment; null for none.
          returned: always
          type: dict
        nics:
          description:
            - RDMA devices with place, link, firmware, MTU and C(ports) with their GIDs.
            - For RoCE the C(lossless) priorities, the priority of each DSCP (C(dscp_priority)),
              null where dcb does not say, and the C(traffic_class) that the driver gives to all.
          returned: always
          type: list
          elements: dict
        mlx5_core:
          description: Whether the NIC's driver is loaded, and its version (null for the kernel's).
          returned: always
          type: dict
        affinity:
          description:
            - For each GPU its nearest C(nics) and the C(nearness), PIX, PXB, PHB, NODE or SYS.
          returned: always
          type: list
          elements: dict
        pci:
          description:
            - The number of C(iommu_units), and the C(redirecting_bridges) above GPUs and NICs (null
              without root).
          returned: always
          type: dict
        fabric:
          description: NVSwitches, and version and state of the fabric manager.
          returned: always
          type: dict
        limits:
          description: Limits of locked memory, and NUMA balancing.
          returned: always
          type: dict
        environment:
          description: NVSHMEM's and NCCL's variables in /etc/environment.
          returned: always
          type: dict
        container:
          description: The kind of container this is (null for none), and what it was given.
          returned: always
          type: dict
        boot:
          description:
            - C(boot_id), C(boot_time) (seconds since 1970), C(free_bytes) of /boot and
              C(largest_image_bytes) in it.
          returned: always
          type: dict
        secure_boot:
          description: Whether the firmware enforces signatures; null when it does not say.
          returned: always
          type: bool
        kernel_log:
          description: Lines of the kernel's log about these modules, at most a hundred.
          returned: always
          type: list
          elements: str
        changes:
          description: Boot in which the roles last changed what a boot reads; null when never.
          returned: always
          type: dict
        unread:
          description: What is there and could not be read.
          returned: always
          type: list
          elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.facts import (
    NVSHMEM_PREFIX,
    VENV,
    gather,
)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "default": "/"},
            "require_options": {"type": "bool", "default": False},
            "nvshmem_prefix": {"type": "path", "default": NVSHMEM_PREFIX},
            "venv": {"type": "path", "default": VENV},
        },
        supports_check_mode=True,
    )
    params = module.params
    facts = gather(
        params["root"], params["require_options"], params["nvshmem_prefix"], params["venv"]
    )
    module.exit_json(changed=False, ansible_facts={"epfleet": facts})


if __name__ == "__main__":
    main()
