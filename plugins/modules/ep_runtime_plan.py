#!/usr/bin/python
# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: ep_runtime_plan
short_description: Say which ep_runtime wheel a host needs and whether the controller has it
version_added: 0.1.0
description:
  - Computes the key of a host's wheel from the collection's C(runtime/) folder and the host's
    facts, and looks for a whole wheel of that key in the controller's cache.
  - Works on the controller only, and changes nothing.
author:
  - The epfleet authors (@epfleet)
options:
  info:
    description: The result of M(epfleet.expert_parallel.ep_runtime_info) for this host.
    type: dict
    required: true
  cache:
    description: The cache's directory on the controller.
    type: path
    required: true
  cuda:
    description:
      - Whether the wheel holds CUDA kernels. V(auto) builds them for a host with a GPU and a
        compiler that serves it.
    type: str
    choices: [auto, "on", "off"]
    default: auto
  cuda_compiler:
    description:
      - Where the CUDA compiler comes from. V(host) is nvcc in C(/usr/local/cuda/bin), V(pypi) are
        NVIDIA's wheels of C(runtime/requirements/), and V(auto) the first where there is one, else
        the second.
    type: str
    choices: [auto, host, pypi]
    default: auto
  prebuilt:
    description: The runtime's wheel on the controller, to be installed in place of one built here.
    type: path
    default: ""
  version:
    description: The version that pip is to take from its index in place of a wheel built here.
    type: str
    default: ""
  drop_in:
    description: Whether C(deep_ep) is wanted, too. Its wheel lies beside the runtime's.
    type: bool
    default: false
attributes:
  check_mode:
    description: Can run in check mode without changing anything.
    support: full
"""

EXAMPLES = r"""
- name: Decide which wheel this host needs
  epfleet.expert_parallel.ep_runtime_plan:
    info: "{{ runtime }}"
    cache: ~/.cache/epfleet/wheels
  register: plan
"""

RETURN = r"""
key:
  description: The key of the wheel.
  returned: success
  type: str
inputs:
  description: What the key was made of.
  returned: success
  type: dict
cuda:
  description:
    - C(compiler) (path of nvcc, or C(pypi)), C(version), C(major), C(architectures) and C(nvshmem)
      to build CUDA kernels with. None for a wheel without them, or that is not built.
  returned: success
  type: dict
reasons:
  description: Why something must be installed; empty when the host is right.
  returned: success
  type: list
  elements: str
build:
  description: Whether a wheel must be built first.
  returned: success
  type: bool
cache_problem:
  description: Why the cache has no wheel of this key.
  returned: success
  type: str
"""
