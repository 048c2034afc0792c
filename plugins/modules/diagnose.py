# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin diagnose, which runs on the controller alone."""

from __future__ import annotations

DOCUMENTATION = r"""
module: diagnose
short_description: Say what is wrong with the fleet's hosts and what fixes it
version_added: 0.2.0
description:
  - Compares the facts of the hosts (M(epfleet.expert_parallel.host_facts) must have run on them)
    with what the roles intend, and the hosts with each other.
  - Prints a table in which one finding of many hosts is one row.
  - Runs on the controller and connects to no host.
  - Every finding has its page in C(docs/diagnose).
options:
  hosts:
    description: Names of the hosts to look at.
    type: list
    elements: str
    required: true
  stage:
    description:
      - C(preflight) fails for errors that no role mends in a rollout.
      - C(verify) fails for every error.
      - C(report) fails for none.
    type: str
    default: report
    choices: [preflight, verify, report]
  accepted:
    description: Findings that are no reason to fail, by their identities.
    type: list
    elements: str
    default: []
  output_dir:
    description:
      - Directory on the controller for C(findings.json) and C(findings.html).
      - Nothing is written when empty, or in check mode.
    type: str
    default: ""
attributes:
  check_mode:
    support: full
    description: Looks in check mode as it does otherwise.
  diff_mode:
    support: none
    description: Nothing changes on any host.
  platform:
    support: full
    description: Runs on the controller.
    platforms: posix
author:
  - The epfleet authors (@epfleet)
"""

EXAMPLES = r"""
- name: Say what is wrong with the fleet
  epfleet.expert_parallel.diagnose:
    hosts: "{{ ansible_play_hosts_all }}"
    output_dir: build/findings
  run_once: true
"""

RETURN = r"""
findings:
  description:
    - Findings, errors first, each with C(id), C(severity) (error, warning or info), C(title),
      C(hosts), C(evidence) (a list of C(where), C(seen) and C(wanted)), C(consequence), C(fix) and
      C(role), which mends it in a rollout (null for none).
  returned: success
  type: list
  elements: dict
summary:
  description: One line that counts them.
  returned: success
  type: str
"""
