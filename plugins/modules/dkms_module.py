#!/usr/bin/python
# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Module dkms_module: a kernel module that DKMS keeps built for every kernel."""

from __future__ import annotations

DOCUMENTATION = r"""
module: dkms_module
short_description: Keep a DKMS module built for every installed kernel
version_added: 0.2.0
description:
  - Builds and installs a module that DKMS knows for each installed kernel whose headers are there
    and that lacks it. A build that fails is reported by the compiler's first error.
  - The kernel that boots next must have the module or its headers.
options:
  name:
    description:
      - The module's name in DKMS. C(nvidia) means C(nvidia-open), C(nvidia-current) and the like
        too.
    type: str
    required: true
  version:
    description: Its version; empty takes whichever DKMS has.
    type: str
    default: ""
  state:
    description:
      - C(built) is as above. C(absent) removes the module from DKMS and from all kernels.
    type: str
    choices: [built, absent]
    default: built
attributes:
  check_mode:
    support: full
    description: Says for which kernels a build is missing.
  diff_mode:
    support: full
    description: Shows the kernels that have the module.
  platform:
    support: full
    description: Hosts with DKMS.
    platforms: linux
author:
  - The epfleet authors (@epfleet)
"""

EXAMPLES = r"""
- name: Keep gdrdrv through kernel upgrades
  epfleet.expert_parallel.dkms_module:
    name: gdrdrv
    version: 2.5.2
"""

RETURN = r"""
sources:
  description: What DKMS has under that name, as C(NAME/VERSION).
  returned: success
  type: list
  elements: str
kernels:
  description: Releases of the kernels that have the module afterwards.
  returned: success
  type: list
  elements: str
"""

from typing import Dict, List

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import dkms
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host import bootkernel
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.root import (
    HostRoot,
)


def _told(built: Dict[str, List[str]]) -> str:
    return "".join(f"{name}: {' '.join(kernels)}\n" for name, kernels in built.items())


def _build(module: AnsibleModule, host: HostRoot, source: dkms.Source, kernel: str) -> None:
    what = ["-m", source.name, "-v", source.version, "-k", kernel]
    code, output, errors = module.run_command(["dkms", "install", *what])
    if code == 0:
        return
    detail = dkms.failures(host).get(source.label) or (errors or output).strip()[-300:]
    module.fail_json(
        msg=f"{source.label} does not build for kernel {kernel}: {detail}. The whole output is in"
        f" /var/lib/dkms/{source.label}/build/make.log on the host. Install a version that"
        " supports this kernel, or remove the kernel.",
        sources=[source.label],
        kernels=source.built,
    )


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "version": {"type": "str", "default": ""},
            "state": {"type": "str", "choices": ["built", "absent"], "default": "built"},
        },
        supports_check_mode=True,
    )
    host = HostRoot()
    name, version = module.params["name"], module.params["version"]
    matching = [
        source
        for source in dkms.sources(host)
        if (source.name == name or (name == "nvidia" and source.name.startswith("nvidia-")))
        and version in ("", source.version)
    ]
    before = {source.label: source.built for source in matching}
    present = module.params["state"] == "built"
    if present and version and not matching:
        module.fail_json(msg=f"DKMS does not know {name}/{version}; add its source first.")
    after = {}
    for source in matching:
        label = source.label
        if not present:
            if not module.check_mode:
                module.run_command(
                    ["dkms", "remove", "-m", source.name, "-v", source.version, "--all"],
                    check_rc=True,
                )
            continue
        missing = [kernel for kernel in dkms.buildable(host) if kernel not in before[label]]
        coming = bootkernel.next_boot(host)["release"]
        if coming and coming not in before[label] and coming not in missing:
            module.fail_json(
                msg=f"{label} can't be built for kernel {coming}, which boots next: its headers are"
                f" not installed. Install them (Debian: linux-headers-{coming}; RHEL:"
                f" kernel-devel-{coming}), then run again."
            )
        for kernel in () if module.check_mode else missing:
            _build(module, host, source, kernel)
        after[label] = sorted([*before[label], *missing])
    module.exit_json(
        changed=before != after,
        sources=list(after),
        kernels=sorted({kernel for kernels in after.values() for kernel in kernels}),
        diff={"before": _told(before), "after": _told(after)},
    )


if __name__ == "__main__":
    main()
