#!/usr/bin/python
# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Module nvshmem_bootstrap: see that a copy of NVSHMEM loads and its uid bootstrap works."""

from __future__ import annotations

DOCUMENTATION = r"""
module: nvshmem_bootstrap
short_description: See that a copy of NVSHMEM works as far as it does without a GPU
version_added: 0.2.0
description:
  - Loads the library with the host's Python and has its uid bootstrap make an id, as rank 0 of a
    job does. That takes the library, its plugin and a network interface, and no GPU.
  - Fails with the library's own words, or when it says that it is of another version.
options:
  library:
    description: The library, C(libnvshmem_host.so.3), by its path.
    type: path
    required: true
  version:
    description: The version that it must say it is.
    type: str
    required: true
  settings:
    description: Settings of the site without their C(NVSHMEM_) prefix, as jobs will have them.
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: Does nothing; the copy may not be there yet.
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
- name: See that it works
  epfleet.expert_parallel.nvshmem_bootstrap:
    library: /opt/epfleet/nvshmem/3.4.5/nvidia/nvshmem/lib/libnvshmem_host.so.3
    version: 3.4.5
"""

RETURN = r"""
version:
  description: What the library says it is.
  returned: outside check mode
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import nvshmem_bootstrap


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "library": {"type": "path", "required": True},
            "version": {"type": "str", "required": True},
            "settings": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    if module.check_mode:
        module.exit_json(changed=False)
    library, version = module.params["library"], module.params["version"]
    settings = nvshmem_bootstrap.settings_environment(module.params["settings"])

    def run(command: list, environment: dict) -> tuple:
        return module.run_command(["timeout", "30", *command], environ_update=environment)

    try:
        said = nvshmem_bootstrap.check(library, settings, run)
    except nvshmem_bootstrap.BootstrapError as error:
        told = ", ".join(f"{name}={value}" for name, value in sorted(settings.items()))
        module.fail_json(
            msg=f"NVSHMEM {version} is installed and its uid bootstrap does not work: {error}"
            f" ({library}; settings: {told or 'none'}). Jobs would fail in the same way; install it"
            " whole, or mend nvshmem_settings."
        )
    if said != version:
        module.fail_json(msg=f"{library} says that it is {said}, and should be {version}.")
    module.exit_json(changed=False, version=said)


if __name__ == "__main__":
    main()
