#!/usr/bin/python
# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Module initramfs_rebuild: put the driver options into the images that need them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: initramfs_rebuild
short_description: Rebuild the initramfs images that lack the driver's options
version_added: 0.1.0
description:
  - Rebuilds an image only when its content says so, whatever other tasks changed. The state of
    each image is the one that M(epfleet.expert_parallel.host_facts) reports.
  - A new image is built apart, read back, and takes the old one's place in one step. When the
    build fails, when the new image does not hold the options, or when the file system is full,
    the old image stays and the module fails with the kernel's release.
options:
  kernels:
    description:
      - Whose images are rebuilt. V(all) installed kernels' or only that of the kernel which boots
        V(next), as GRUB's settings and the kernels in C(/boot) tell it.
      - With V(next) the module fails where that cannot be told.
    type: str
    choices: [all, next]
    default: all
  require_options:
    description: Hold the options of an image to be needed even without C(nvidia.ko) in it.
    type: bool
    default: false
  planned_options:
    description:
      - Options that C(/etc/modprobe.d/zz-epfleet-nvidia.conf) is going to hold, as
        the filter P(epfleet.expert_parallel.driver_plan#filter) gives them.
      - For check mode, in which that file is not written. Ignored otherwise.
    type: dict
attributes:
  check_mode:
    support: full
    description: Says which images would be rebuilt, and rebuilds none.
  diff_mode:
    support: full
    description: Shows each image's state before and after.
  platform:
    support: full
    description: Hosts with initramfs-tools or dracut.
    platforms: linux
author:
  - The epfleet authors (@epfleet)
"""

EXAMPLES = r"""
- name: Rebuild what is stale
  epfleet.expert_parallel.initramfs_rebuild:

- name: Rebuild the image of the next boot only, if it is stale
  epfleet.expert_parallel.initramfs_rebuild:
    kernels: next
"""

RETURN = r"""
images:
  description:
    - The images with C(kernel), C(path), C(tool), C(state) and C(evidence), afterwards. Those of
      O(kernels) only.
  returned: always
  type: list
  elements: dict
rebuilt:
  description: Releases of the kernels whose image was (or in check mode would be) rebuilt.
  returned: always
  type: list
  elements: str
"""

from typing import Any, Dict, List

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host import (
    bootkernel,
    initramfs,
    modprobe,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.root import (
    HostRoot,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.rebuild import (
    RebuildError,
    rebuild,
)

_NO_NEXT = (
    "Which kernel boots next cannot be told ({evidence}), so no image was rebuilt. Have all of them"
    " rebuilt (initramfs_kernels: all), or name the kernel in GRUB's default."
)


def _describe(images: List[Dict[str, Any]]) -> str:
    return "".join(f"{item['path']}: {item['state']} ({item['evidence']})\n" for item in images)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "kernels": {"choices": ["all", "next"], "default": "all"},
            "require_options": {"type": "bool", "default": False},
            "planned_options": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    host = HostRoot()
    driver = modprobe.driver_module(modprobe.config_files(host))
    require = module.params["require_options"]
    planned = module.params["planned_options"] if module.check_mode else None
    release = None
    if module.params["kernels"] == "next":
        following = bootkernel.next_boot(host)
        release = following["release"]
        if release is None:
            module.fail_json(msg=_NO_NEXT.format(**following), images=[], rebuilt=[])
    before = initramfs.facts(host, driver, require, planned, release)
    stale = [item for item in before if item["state"] == initramfs.STALE]
    after = before
    if stale and module.check_mode:
        after = [
            {**item, "state": initramfs.CURRENT, "evidence": "would be rebuilt"}
            if item in stale
            else item
            for item in before
        ]
    elif stale:
        try:
            for item in stale:
                rebuild(host, item, driver, require, module.run_command)
        except RebuildError as error:
            left = initramfs.facts(host, driver, require, release=release)
            module.fail_json(msg=str(error), images=left, rebuilt=[])
        after = initramfs.facts(host, driver, require, release=release)
    module.exit_json(
        changed=bool(stale),
        images=after,
        rebuilt=[item["kernel"] for item in stale],
        diff={"before": _describe(before), "after": _describe(after)},
    )


if __name__ == "__main__":
    main()
