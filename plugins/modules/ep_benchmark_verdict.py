#!/usr/bin/python
# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: ep_benchmark_verdict
short_description: From what every host says of a benchmark run to one sentence about the run
version_added: 0.1.0
description:
  - Works on the controller only. Names the rank and host that failed first, as far as can be told,
    with the end of its log, and refuses a run of which a part is missing.
author:
  - The epfleet authors (@epfleet)
options:
  hosts:
    description: The hosts of the run in rank order.
    type: list
    elements: str
    required: true
  results:
    description: The name of the variable in which each host's status was registered.
    type: str
    required: true
  ranks_per_host:
    description: Number of ranks on each host.
    type: int
    required: true
  run_id:
    description: Identifier of the run.
    type: str
    required: true
  overdue:
    description: For how many seconds an answer is overdue. Above 0 nothing counts as running.
    type: float
    default: 0
attributes:
  check_mode:
    description: Can run in check mode without changing anything.
    support: full
"""

EXAMPLES = r"""
- name: Sum up
  epfleet.expert_parallel.ep_benchmark_verdict:
    hosts: "{{ ansible_play_hosts_all }}"
    results: status
    ranks_per_host: 8
    run_id: 20260101T000000Z-abcdef
  run_once: true
"""

RETURN = r"""
state:
  description: V(running), V(passed) or V(failed).
  returned: success
  type: str
message:
  description: What to tell the user.
  returned: success
  type: str
"""
