#!/usr/bin/python
# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: ep_benchmark_run
short_description: Run one host's ranks of the benchmark and watch them to their end
version_added: 0.1.0
description:
  - Starts torchrun with the ranks of this host and ends with them. Meant to be started
    asynchronously on all hosts, since the ranks of a host wait for those of the others.
  - With another O(launcher) it runs on the first host only and starts the ranks of all.
  - However the ranks end, no process of them is left. That includes a time limit, and a play that
    has gone away and asks for the run no more (see M(epfleet.expert_parallel.ep_benchmark_status)).
  - A failed benchmark is an outcome, left in the work directory, not a failure of this module.
author:
  - The epfleet authors (@epfleet)
options:
  workdir:
    description: Directory for logs and results.
    type: path
    required: true
  run_id:
    description: Identifier of the run, the same on all hosts and never used before.
    type: str
    required: true
  python:
    description: The interpreter of the runtime's virtual environment.
    type: path
    required: true
  node:
    description: Number of this host among all hosts. Its first rank is O(node) * O(ranks_per_node).
    type: int
    required: true
  nodes:
    description: Number of hosts.
    type: int
    required: true
  ranks_per_node:
    description: Number of ranks on each host.
    type: int
    required: true
  address:
    description: This host's address.
    type: str
    required: true
  interface:
    description: The interface of that address.
    type: str
    required: true
  master:
    description: The first host's address.
    type: str
    required: true
  port:
    description: The TCP port on the first host at which all ranks meet.
    type: int
    required: true
  host_name:
    description: The name of this host in results.
    type: str
    required: true
  timeout:
    description: After how many seconds the ranks are ended.
    type: float
    required: true
  launcher:
    description:
      - What starts the ranks. V(torchrun) runs on each host for its own ranks; V(srun) of Slurm and
        V(mpirun) of Open MPI run on the first host for the ranks of all.
    type: str
    choices: [torchrun, srun, mpirun]
    default: torchrun
  launcher_arguments:
    description: More arguments for the launcher.
    type: list
    elements: str
    default: []
  launch_nodes:
    description: What a launcher of all ranks knows the hosts by, in rank order.
    type: list
    elements: str
    default: []
  host_names:
    description: The hosts' names in results and their own names, C(NAME=OWN), in rank order.
    type: list
    elements: str
    default: []
  meeting_timeout:
    description: For how many seconds the first host's answer is waited for.
    type: float
    default: 120
  silence:
    description: After how many seconds without a question for the status the ranks are ended.
    type: float
    default: 120
  arguments:
    description: Arguments of C(python -m ep_runtime.bench low-latency).
    type: list
    elements: str
    default: []
  environment:
    description: More environment variables for the ranks.
    type: dict
    default: {}
attributes:
  check_mode:
    description: Does nothing in check mode.
    support: full
  diff_mode:
    description: Nothing of the host's configuration changes.
    support: none
"""

EXAMPLES = r"""
- name: Start the ranks
  epfleet.expert_parallel.ep_benchmark_run:
    workdir: /var/tmp/epfleet-benchmark
    run_id: 20260101T000000Z-abcdef
    python: /opt/epfleet/venv/bin/python
    node: 0
    nodes: 1
    ranks_per_node: 2
    address: 127.0.0.1
    interface: lo
    master: 127.0.0.1
    port: 29517
    host_name: localhost
    timeout: 600
  async: 700
  poll: 0
"""

RETURN = r"""
state:
  description: How the run ended on this host.
  returned: success, not in check mode
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.ep_job import Job
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.ep_launchers import (
    LAUNCHERS,
    TORCHRUN,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.ep_ranks import (
    Plan,
    failure_to_start,
    supervise,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.own_directory import (
    make_own_directory,
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "workdir": {"type": "path", "required": True},
            "run_id": {"type": "str", "required": True},
            "python": {"type": "path", "required": True},
            "node": {"type": "int", "required": True},
            "nodes": {"type": "int", "required": True},
            "ranks_per_node": {"type": "int", "required": True},
            "address": {"type": "str", "required": True},
            "interface": {"type": "str", "required": True},
            "master": {"type": "str", "required": True},
            "port": {"type": "int", "required": True},
            "host_name": {"type": "str", "required": True},
            "timeout": {"type": "float", "required": True},
            "launcher": {"type": "str", "choices": list(LAUNCHERS), "default": TORCHRUN},
            "launcher_arguments": {"type": "list", "elements": "str", "default": []},
            "launch_nodes": {"type": "list", "elements": "str", "default": []},
            "host_names": {"type": "list", "elements": "str", "default": []},
            "meeting_timeout": {"type": "float", "default": 120},
            "silence": {"type": "float", "default": 120},
            "arguments": {"type": "list", "elements": "str", "default": []},
            "environment": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    given = module.params
    if module.check_mode:
        module.exit_json(changed=False)
    plan = Plan(
        python=given["python"],
        node=given["node"],
        nodes=given["nodes"],
        ranks_per_node=given["ranks_per_node"],
        address=given["address"],
        interface=given["interface"],
        master=given["master"],
        port=given["port"],
        host_name=given["host_name"],
        timeout_s=given["timeout"],
        arguments=given["arguments"],
        environment={name: str(value) for name, value in given["environment"].items()},
        silence_s=given["silence"],
        meeting_s=given["meeting_timeout"],
        launcher=given["launcher"],
        launcher_arguments=given["launcher_arguments"],
        launch_nodes=given["launch_nodes"],
        host_names=given["host_names"],
    )
    job = Job(given["workdir"], given["run_id"], given["node"])
    try:
        make_own_directory(given["workdir"], "ep_benchmark_workdir")
        job.create()
    except OSError as error:
        module.fail_json(msg=str(error))
    try:
        outcome = supervise(plan, job)
    except OSError as error:
        outcome = failure_to_start(plan, error)
    job.finish(outcome)
    module.exit_json(changed=False, state=outcome["state"])


if __name__ == "__main__":
    main()
