#!/usr/bin/python
# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: ep_benchmark_status
short_description: Say how far one host's ranks of the benchmark are
version_added: 0.1.0
description:
  - Reads what M(epfleet.expert_parallel.ep_benchmark_run) left, and tells it that somebody still
    waits for the run.
author:
  - The epfleet authors (@epfleet)
options:
  workdir:
    description: Directory of logs and results.
    type: path
    required: true
  run_id:
    description: Identifier of the run.
    type: str
    required: true
  node:
    description: Number of this host among all hosts.
    type: int
    required: true
  wait:
    description: For how many seconds to wait for the end of the ranks.
    type: float
    default: 0
attributes:
  check_mode:
    description: Does nothing in check mode.
    support: full
  diff_mode:
    description: Nothing of the host's configuration changes.
    support: none
"""

EXAMPLES = r"""
- name: Look at the ranks
  epfleet.expert_parallel.ep_benchmark_status:
    workdir: /var/tmp/epfleet-benchmark
    run_id: 20260101T000000Z-abcdef
    node: 0
    wait: 10
"""

RETURN = r"""
state:
  description: V(running), V(passed), or how the ranks failed.
  returned: success
  type: str
progress:
  description: What the first rank last said about how far the run is; empty on other hosts.
  returned: while the ranks run
  type: str
result:
  description: The outcome, with the end of the failed ranks' logs.
  returned: when the ranks have ended
  type: dict
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.ep_job import Job, alive

# A launcher that was just started has not noted itself yet.
_START_S = 30.0
_POLL_S = 0.2


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "workdir": {"type": "path", "required": True},
            "run_id": {"type": "str", "required": True},
            "node": {"type": "int", "required": True},
            "wait": {"type": "float", "default": 0},
        },
        supports_check_mode=True,
    )
    given = module.params
    if module.check_mode:
        module.exit_json(changed=False, state="running")
    job = Job(given["workdir"], given["run_id"], given["node"])
    began = time.monotonic()
    while True:
        # The launcher first: it may end between the two looks, but then its result is there.
        started = job.started()
        going = started is not None and alive(started.get("launcher"))
        result = job.result()
        waited = time.monotonic() - began
        if result is not None:
            module.exit_json(changed=False, state=result["state"], result=result)
        if going:
            job.beat()
        elif started is not None or waited > _START_S:
            module.fail_json(
                msg="the launcher of the ranks has gone without a result; "
                f"its files are in {job.directory}"
            )
        if going and waited >= given["wait"]:
            module.exit_json(changed=False, state="running", progress=job.progress())
        time.sleep(_POLL_S)


if __name__ == "__main__":
    main()
