# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Documentation of the action plugin check_fleet, which runs on the controller alone."""

from __future__ import annotations

DOCUMENTATION = r"""
module: check_fleet
short_description: Refuse a run with bad input before it changes anything
version_added: 0.1.0
description:
  - Reads the variables of the run, the defaults of the collection's roles included, and fails
    with one sentence for each that cannot be right.
  - Runs on the controller and connects to no host.
options:
  stage:
    description:
      - C(inventory) checks that there are hosts.
      - C(host) checks the variables of the host it runs for and returns the fleet's settings.
      - C(fleet) compares O(hosts), whose facts must have been read.
    type: str
    required: true
    choices: [inventory, host, fleet]
  hosts:
    description: Names of the hosts to look at.
    type: list
    elements: str
    default: []
  pattern:
    description: The pattern that gave O(hosts), for the message.
    type: str
    default: ep_fleet
  benchmark:
    description: Whether the play runs the benchmark, so that ranks and experts must fit the fleet.
    type: bool
    default: true
    version_added: 0.2.0
attributes:
  check_mode:
    support: full
    description: Checks in check mode as it does otherwise.
  diff_mode:
    support: none
    description: Nothing changes.
  platform:
    support: full
    description: Runs on the controller.
    platforms: posix
author:
  - The epfleet authors (@epfleet)
"""

EXAMPLES = r"""
- name: Check the variables of each host
  epfleet.expert_parallel.check_fleet:
    stage: host

- name: Check the hosts against each other
  epfleet.expert_parallel.check_fleet:
    stage: fleet
    hosts: "{{ ansible_play_hosts_all }}"
  run_once: true
"""

RETURN = r"""
ansible_facts:
  description: The fleet's settings with defaults filled in.
  returned: in stage C(host)
  type: dict
  contains:
    epfleet_settings:
      description: The C(epfleet_*) variables without their prefix, but for those with addresses.
      returned: in stage C(host)
      type: dict
"""
