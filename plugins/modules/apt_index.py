#!/usr/bin/python
# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Module apt_index: make a folder of .deb files a flat apt repository."""

from __future__ import annotations

DOCUMENTATION = r"""
module: apt_index
short_description: Make a folder of packages an apt repository
version_added: 0.2.0
description:
  - Writes the file C(Packages) that apt needs to install from the folder. An empty folder becomes
    an empty repository.
options:
  path:
    description: The folder.
    type: path
    required: true
attributes:
  check_mode:
    support: full
    description: Says whether the index would change.
  diff_mode:
    support: none
    description: The index repeats what the packages say.
  platform:
    support: full
    description: Machines with dpkg, or an empty folder.
    platforms: linux
author:
  - The epfleet authors (@epfleet)
"""

EXAMPLES = r"""
- name: Index the bundle's packages
  epfleet.expert_parallel.apt_index:
    path: /srv/bundle/packages
"""

RETURN = r"""
packages:
  description: The files in the repository.
  returned: success
  type: list
  elements: str
"""

import hashlib
import os

from ansible.module_utils.basic import AnsibleModule


def _entry(module: AnsibleModule, path: str) -> str:
    _code, fields, _errors = module.run_command(["dpkg-deb", "--field", path], check_rc=True)
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return (
        f"{fields.strip()}\nFilename: ./{os.path.basename(path)}\nSize: {os.path.getsize(path)}\n"
        f"SHA256: {digest.hexdigest()}\n"
    )


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"path": {"type": "path", "required": True}}, supports_check_mode=True
    )
    os.umask(0o022)  # whatever the operator's is: others read what is made, and never write it
    folder = module.params["path"]
    names = sorted(name for name in os.listdir(folder) if name.endswith(".deb"))
    index = "\n".join(_entry(module, os.path.join(folder, name)) for name in names)
    target = os.path.join(folder, "Packages")
    before = None
    if os.path.exists(target):
        with open(target, encoding="utf-8") as stream:
            before = stream.read()
    if before != index and not module.check_mode:
        fresh = target + ".new"
        with open(fresh, "w", encoding="utf-8") as stream:
            stream.write(index)
        os.replace(fresh, target)
    module.exit_json(changed=before != index, packages=names)


if __name__ == "__main__":
    main()
