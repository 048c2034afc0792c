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
"""

RETURN = r"""
images:
  description: The images with C(kernel), C(path), C(tool), C(state) and C(evidence), afterwards.
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


def _describe(images: List[Dict[str, Any]]) -> str:
    return "".join(f"{item['path']}: {item['state']} ({item['evidence']})\n" for item in images)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "require_options": {"type": "bool", "default": False},
            "planned_options": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    host = HostRoot()
    driver = modprobe.driver_module(modprobe.config_files(host))
    require = module.params["require_options"]
    planned = module.params["planned_options"] if module.check_mode else None
    before = initramfs.facts(host, driver, require, planned)
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
            module.fail_json(
                msg=str(error), images=initramfs.facts(host, driver, require), rebuilt=[]
            )
        after = initramfs.facts(host, driver, require)
    module.exit_json(
        changed=bool(stale),
        images=after,
        rebuilt=[item["kernel"] for item in stale],
        diff={"before": _describe(before), "after": _describe(after)},
    )


if __name__ == "__main__":
    main()
