#!/usr/bin/python
# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: ep_benchmark_stop
short_description: End runs of the benchmark on a host, and remove what they left
version_added: 0.1.0
description:
  - Ends the launcher and the ranks of a run by what was noted when they were started. A process
    that the run did not start is never touched.
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
  others:
    description: End all runs in O(workdir) but O(run_id), and remove their files.
    type: bool
    default: false
  remove:
    description: Remove the files of O(run_id) as well.
    type: bool
    default: false
  wait:
    description:
      - Whether to wait for the end. Without it the launchers are asked to end their ranks and
        nothing more, which takes no time on any number of hosts.
    type: bool
    default: true
  why:
    description: The reason, for the outcome of what is ended.
    type: str
    default: the play ended the run
attributes:
  check_mode:
    description: Does nothing in check mode.
    support: full
  diff_mode:
    description: Nothing of the host's configuration changes.
    support: none
"""

EXAMPLES = r"""
- name: End the stragglers
  epfleet.expert_parallel.ep_benchmark_stop:
    workdir: /var/tmp/epfleet-benchmark
    run_id: 20260101T000000Z-abcdef
"""

RETURN = r"""
ended:
  description: The runs that were still going and are now ended.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.ep_job import (
    Job,
    end_job,
    nodes_of,
    other_runs,
    remove_run,
)

_GRACE_S = 10.0


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "workdir": {"type": "path", "required": True},
            "run_id": {"type": "str", "required": True},
            "others": {"type": "bool", "default": False},
            "remove": {"type": "bool", "default": False},
            "wait": {"type": "bool", "default": True},
            "why": {"type": "str", "default": "the play ended the run"},
        },
        supports_check_mode=True,
    )
    given = module.params
    ended: list[str] = []
    if module.check_mode:
        module.exit_json(changed=False, ended=ended)
    workdir, run_id = given["workdir"], given["run_id"]
    runs = other_runs(workdir, run_id) if given["others"] else [run_id]
    for run in runs:
        # A launcher on the first host may have started ranks here that have left no file: node 0.
        jobs = [Job(workdir, run, node) for node in sorted({0, *nodes_of(workdir, run)})]
        for job in jobs:
            job.ask_to_stop(given["why"])
        if not given["wait"]:
            continue
        going = [end_job(job, given["why"], _GRACE_S) for job in jobs]
        if any(going):
            ended.append(run)
        if given["others"] or given["remove"]:
            remove_run(workdir, run)
    # A measurement leaves the host as it was, so this never counts as a change.
    module.exit_json(changed=False, ended=ended)


if __name__ == "__main__":
    main()
