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
  seconds:
    description: For how many seconds the ranks have been running.
    type: float
    default: 0
  limit:
    description:
      - How many seconds they have; after that nothing counts as running. V(0) is no limit.
      - Until then a line about how far the run is goes to the screen.
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
wait:
  description: For how many seconds to wait for the end of the ranks before the next question.
  returned: success
  type: int
message:
  description: What to tell the user.
  returned: success
  type: str
"""
