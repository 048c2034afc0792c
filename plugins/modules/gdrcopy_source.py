#!/usr/bin/python
# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Module gdrcopy_source: GDRCopy from its source archive."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gdrcopy_source
short_description: Install GDRCopy from its source archive
version_added: 0.2.0
description:
  - Gives the kernel module gdrdrv to DKMS, so that kernel upgrades keep it, and builds the library
    below C(/usr/local) with an entry for the loader.
  - gdrdrv is built against the sources of the installed driver, in that driver's flavour. When the
    driver's version changes, the next run builds it anew; DKMS by itself would not.
  - For a kernel that comes later, building is M(epfleet.expert_parallel.dkms_module)'s work.
options:
  url:
    description: The archive, a URL or an absolute path on the host.
    type: str
  checksum:
    description: Its checksum, C(sha256:HEX).
    type: str
  version:
    description: Its version.
    type: str
  cuda:
    description: A CUDA toolkit's folder, to build C(gdrcopy_sanity) with; empty leaves that out.
    type: str
    default: ""
  state:
    description: Whether it is installed.
    type: str
    choices: [present, absent]
    default: present
attributes:
  check_mode:
    support: full
    description: Says whether anything would be installed or removed.
  diff_mode:
    support: full
    description: Shows version, archive and driver before and after.
  platform:
    support: full
    description: Linux hosts with DKMS, make and a C compiler.
    platforms: linux
author:
  - The epfleet authors (@epfleet)
"""

EXAMPLES = r"""
- name: Install GDRCopy
  epfleet.expert_parallel.gdrcopy_source:
    url: https://mirror.example.org/gdrcopy-2.5.2.tar.gz
    checksum: sha256:0000000000000000000000000000000000000000000000000000000000000000
    version: 2.5.2
"""

RETURN = r"""
driver:
  description: The driver's sources that gdrdrv is built against.
  returned: when present
  type: str
"""

import json
import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import (
    fetch,
    gdrcopy_source,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.root import (
    HostRoot,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.url_passwords import hide


def _told(marker: object) -> str:
    return json.dumps(marker, indent=2, sort_keys=True) + "\n"


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "no_log": True},
            "checksum": {"type": "str"},
            "version": {"type": "str"},
            "cuda": {"type": "str", "default": ""},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
        },
        required_if=[("state", "present", ("url", "checksum", "version"))],
        supports_check_mode=True,
    )
    host, params = HostRoot(), module.params
    os.umask(0o022)  # whatever the operator's is: others read what is made, and never write it
    hide(module, [params["url"] or ""])
    before = gdrcopy_source.installed(host)
    if before is not None:
        before = {key: value for key, value in before.items() if key != "files"}
    try:
        if params["state"] == "absent":
            changed = before is not None
            if not module.check_mode:
                changed = gdrcopy_source.remove(host, module.run_command)
            module.exit_json(changed=changed, diff={"before": _told(before), "after": "null\n"})
        found = gdrcopy_source.driver(host)
        asked = gdrcopy_source.wanted(params["version"], params["checksum"], found, params["cuda"])
        current = gdrcopy_source.is_current(host, asked)
        if not current and not module.check_mode:
            gdrcopy_source.install(host, params["url"], asked, module.run_command)
    except (gdrcopy_source.GdrcopyError, fetch.FetchError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=not current,
        driver=found.directory,
        diff={"before": _told(before), "after": _told(asked)},
    )


if __name__ == "__main__":
    main()
