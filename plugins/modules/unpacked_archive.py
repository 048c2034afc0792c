#!/usr/bin/python
# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Module unpacked_archive: an archive's one top folder at a place of its own."""

from __future__ import annotations

DOCUMENTATION = r"""
module: unpacked_archive
short_description: Fetch an archive, check it and unpack its top folder in one step
version_added: 0.2.0
description:
  - Puts the content of the archive's one top folder at O(dest), which appears in one step or not at
    all. Does nothing when O(dest) holds that archive already, by its checksum.
options:
  url:
    description: The archive, a URL or an absolute path on the host.
    type: str
    required: true
  checksum:
    description: Its checksum, C(sha256:HEX).
    type: str
    required: true
  dest:
    description: The folder to make; an older content is replaced.
    type: path
    required: true
attributes:
  check_mode:
    support: full
    description: Says whether the folder would be made or replaced, and fetches nothing.
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
  epfleet.expert_parallel.unpacked_archive:
    url: /srv/bundle/archives/libnvshmem-linux-x86_64-3.8.0_cuda13-archive.tar.xz
    checksum: sha256:0000000000000000000000000000000000000000000000000000000000000000
    dest: /opt/epfleet/nvshmem/3.8.0/nvidia/nvshmem
"""

RETURN = r"""# """

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import fetch
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.new_tree import (
    put_in_place,
    working_beside,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.url_passwords import hide

_MARKER = ".epfleet-archive"


def _content(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read().strip()
    except OSError:
        return ""


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True, "no_log": True},
            "checksum": {"type": "str", "required": True},
            "dest": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    os.umask(0o022)  # whatever the operator's is: others read what is made, and never write it
    hide(module, [params["url"]])
    dest = params["dest"]
    changed = _content(os.path.join(dest, _MARKER)) != params["checksum"]
    if changed and not module.check_mode:
        try:
            with working_beside(dest) as work:
                archive, tree = os.path.join(work, "archive"), os.path.join(work, "tree")
                fetch.fetch(params["url"], params["checksum"], archive)
                fetch.unpack(archive, tree)
                with open(os.path.join(tree, _MARKER), "w", encoding="utf-8") as stream:
                    stream.write(params["checksum"] + "\n")
                put_in_place(tree, dest)
        except fetch.FetchError as error:
            module.fail_json(msg=str(error))
    module.exit_json(changed=changed)


if __name__ == "__main__":
    main()
