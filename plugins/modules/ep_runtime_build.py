#!/usr/bin/python
# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: ep_runtime_build
short_description: Build the ep_runtime wheels on a host and keep them on the controller
version_added: 0.1.0
description:
  - Sends the collection's C(runtime/) folder to the host, builds the runtime's wheel and that of
    its drop-in C(deep_ep) there in an environment of its own, and stores them with their digests in
    the controller's cache.
  - Does nothing when the cache already holds whole wheels for O(key).
author:
  - The epfleet authors (@epfleet)
options:
  key:
    description: The key of the wheel, from M(epfleet.expert_parallel.ep_runtime_plan).
    type: str
    required: true
  inputs:
    description: What the key was made of, from M(epfleet.expert_parallel.ep_runtime_plan).
    type: dict
    required: true
  cache:
    description: The cache's directory on the controller.
    type: path
    required: true
  python:
    description: The interpreter on the host that the wheel is built with.
    type: str
    required: true
  directory:
    description: Where on the host the build may work. What it makes there is removed afterwards.
    type: path
    required: true
  pip_args:
    description: More arguments for pip.
    type: list
    elements: str
    default: []
  cuda:
    description:
      - C(compiler), C(major), C(architectures) and C(nvshmem) for a build with CUDA kernels, from
        M(epfleet.expert_parallel.ep_runtime_plan).
      - Without it only the host part is built.
    type: dict
  archive:
    description: The source archive on the host. Set by the action.
    type: path
attributes:
  check_mode:
    description: Says what it would do without doing it.
    support: full
"""

EXAMPLES = r"""
- name: Build the wheel once for all hosts of this kind
  epfleet.expert_parallel.ep_runtime_build:
    key: "{{ plan.key }}"
    inputs: "{{ plan.inputs }}"
    cache: ~/.cache/epfleet/wheels
    python: /usr/bin/python3
    directory: /var/tmp/epfleet-build
"""

RETURN = r"""
wheel:
  description: The runtime's wheel in the controller's cache.
  returned: success, not in check mode
  type: str
sha256:
  description: Digest of that wheel.
  returned: success, not in check mode
  type: str
seconds:
  description: How long the build took.
  returned: when it built
  type: float
"""

import base64
import hashlib
import os
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.exclusive import exclusive
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.full_disk import (
    FullDiskError,
    explained,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.own_directory import (
    make_own_directory,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.url_passwords import hide
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_build import (
    build_wheels,
    discard,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_payload import (
    PayloadError,
    read_wheel,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_venv import VenvError


def described(wheel: str) -> dict[str, str]:
    """What the action needs to keep a wheel."""
    with open(wheel, "rb") as stream:
        content = stream.read()
    return {
        "file": os.path.basename(wheel),
        "payload": read_wheel(wheel)["payload"],
        "sha256": hashlib.sha256(content).hexdigest(),
        "content": base64.b64encode(content).decode("ascii"),
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "key": {"type": "str", "required": True, "no_log": False},
            "inputs": {"type": "dict", "required": True},
            "cache": {"type": "path", "required": True},
            "python": {"type": "str", "required": True},
            "directory": {"type": "path", "required": True},
            "pip_args": {"type": "list", "elements": "str", "default": [], "no_log": True},
            "cuda": {"type": "dict"},
            "archive": {"type": "path"},
        },
        supports_check_mode=True,
    )
    given = module.params
    os.umask(0o022)  # whatever the operator's is: others read what is made, and never write it
    hide(module, given["pip_args"])
    if module.check_mode:
        module.exit_json(changed=True, msg=f"would build {given['key']}")
    started = time.monotonic()
    work = os.path.join(given["directory"], given["key"])
    try:
        with exclusive(given["directory"]):
            make_own_directory(given["directory"], "The build's directory")
            discard(work)
            try:
                built = [
                    described(wheel)
                    for wheel in build_wheels(
                        given["archive"], work, given["python"], given["pip_args"], given["cuda"]
                    )
                ]
            except (VenvError, PayloadError, OSError) as error:
                raise explained(
                    error,
                    "building the wheel",
                    work,
                    "free some there, or set ep_runtime_build_dir to a folder of a larger disk",
                ) from error
            finally:
                discard(work)
    except FullDiskError as error:
        module.fail_json(msg=str(error))
    except (VenvError, PayloadError, OSError) as error:
        module.fail_json(msg=f"The ep_runtime wheel could not be built in {work}: {error}")
    module.exit_json(
        changed=True,
        seconds=round(time.monotonic() - started, 1),
        # The action takes this out of the result and stores it.
        built=built,
    )


if __name__ == "__main__":
    main()
