#!/usr/bin/python
# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: ep_benchmark_probe
short_description: Check that a host can take part in the benchmark, and say where its ranks meet
version_added: 0.1.0
description:
  - Chooses the interface and IPv4 address of the host's ranks, checks on the first host that the
    port of the rendezvous is free, and imports the runtime.
  - Changes nothing.
author:
  - The epfleet authors (@epfleet)
options:
  python:
    description: The interpreter of the runtime's virtual environment.
    type: path
    required: true
  interface:
    description:
      - The interface to meet at. Empty means that of the default route, or the only one.
    type: str
    default: ""
  alone:
    description: Whether this host is the only one. Its ranks then meet at the loopback address.
    type: bool
    default: false
  port:
    description: The TCP port to check. Given on the first host only.
    type: int
  launcher:
    description: A program that must be there to start the ranks.
    type: str
  path:
    description: Where O(launcher) is looked for, as in C(PATH). The default is that of the module.
    type: str
  timeout:
    description: For how many seconds the runtime's import may go on.
    type: int
    default: 120
attributes:
  check_mode:
    description: Can run in check mode without changing anything.
    support: full
  diff_mode:
    description: Nothing changes.
    support: none
"""

EXAMPLES = r"""
- name: Check the host
  epfleet.expert_parallel.ep_benchmark_probe:
    python: /opt/epfleet/venv/bin/python
    port: 29517
  register: probe
"""

RETURN = r"""
interface:
  description: The interface of the host's ranks.
  returned: success
  type: str
address:
  description: Its IPv4 address.
  returned: success
  type: str
node_name:
  description: The host's own name.
  returned: success
  type: str
gpu_count:
  description: How many GPUs the runtime's PyTorch sees. Null without a runtime in check mode.
  returned: success
  type: int
"""

import shutil
import socket

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.ep_network import (
    LOOPBACK,
    NetworkError,
    choose_interface,
    interface_addresses,
    listeners,
    port_in_use,
    read_table,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_venv import (
    VenvError,
    run,
)

_ASK_GPUS = "import ep_runtime, torch; print(torch.cuda.device_count())"


def meeting_place(alone: bool, wanted: str) -> tuple[str, str]:
    """The interface and address of this host's ranks."""
    addresses = interface_addresses()
    if alone and not wanted:
        for name, address in addresses.items():
            if address == LOOPBACK:
                return name, address
    name = choose_interface(wanted, addresses, read_table("/proc/net/route"))
    return name, addresses[name]


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "python": {"type": "path", "required": True},
            "interface": {"type": "str", "default": ""},
            "alone": {"type": "bool", "default": False},
            "port": {"type": "int"},
            "launcher": {"type": "str"},
            "path": {"type": "str"},
            "timeout": {"type": "int", "default": 120},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        interface, address = meeting_place(given["alone"], given["interface"])
    except NetworkError as error:
        module.fail_json(msg=f"This host's ranks have no address to meet at: {error}")
    if given["port"] is not None and port_in_use(given["port"], listeners()):
        module.fail_json(
            msg=f"ep_benchmark_port ({given['port']}) is in use on this host, where all ranks are "
            "to meet: choose a free port, or end what listens there."
        )
    launcher = given["launcher"]
    if launcher is not None and shutil.which(launcher, path=given["path"]) is None:
        module.fail_json(
            msg=f"ep_benchmark_launcher is {launcher}, which is not on the PATH of this host, where"
            " it would start all ranks: install it, give PATH in ep_benchmark_environment, or use "
            "torchrun."
        )
    gpu_count = None
    try:
        command = [given["python"], "-I", "-c", _ASK_GPUS]
        gpu_count = int(run(command, timeout_s=given["timeout"]).split()[-1])
    except (VenvError, ValueError, IndexError) as error:
        # In check mode the runtime may be yet to be installed.
        if not module.check_mode:
            module.fail_json(
                msg=f"The runtime cannot be used with {given['python']}: run the role ep_runtime "
                f"first. {error}"
            )
    module.exit_json(
        changed=False,
        interface=interface,
        address=address,
        node_name=socket.gethostname(),
        gpu_count=gpu_count,
    )


if __name__ == "__main__":
    main()
