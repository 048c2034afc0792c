#!/usr/bin/python
# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

DOCUMENTATION = r"""
module: ep_runtime_info
short_description: Read what decides which ep_runtime wheel a host needs
version_added: 0.1.0
description:
  - Reads the Python interpreter, the build tools and the virtual environment of a host, and what
    of the runtime is installed there, from the files themselves.
  - Changes nothing.
author:
  - The epfleet authors (@epfleet)
options:
  python:
    description: The interpreter that a new virtual environment is made from.
    type: str
    default: python3
  venv:
    description: The virtual environment of the runtime. It need not exist.
    type: path
    required: true
  requirements:
    description: Requirements, beside the runtime's own, that the environment should meet.
    type: list
    elements: str
    default: []
  extras:
    description: Extras of the runtime whose requirements count.
    type: list
    elements: str
    default: []
  nvshmem:
    description:
      - Prefix of the NVSHMEM that kernels for several hosts are built against, with its C(include)
        and C(lib). Empty for none.
    type: str
    default: ""
attributes:
  check_mode:
    description: Can run in check mode without changing anything.
    support: full
"""

EXAMPLES = r"""
- name: Read the state of the runtime
  epfleet.expert_parallel.ep_runtime_info:
    venv: /opt/epfleet/venv
    requirements: ["torch>=2.4"]
  register: runtime
"""

RETURN = r"""
python:
  description:
    - What the interpreter says of itself. That of the virtual environment, where there is one.
    - None when no interpreter runs.
  returned: success
  type: dict
venv:
  description: State of the virtual environment, with C(installed), C(marker) and C(problems).
  returned: success
  type: dict
cuda:
  description:
    - C(compiler) (path of an nvcc that runs, or null) and its C(version), C(driver_major), the CUDA
      major that the driver serves, and the C(architectures) of the host's GPUs, as far as they can
      be found out, and C(nvshmem), the C(prefix) and C(version) of the copy asked for, or null
      where it is not there.
  returned: success
  type: dict
build_info:
  description:
    - What the installed runtime says of its build, imported with an installed C(deep_ep).
    - None when it is missing or can't be imported.
  returned: success
  type: dict
missing_tools:
  description: What a build still needs, out of C(python), C(venv), C(headers), C(compiler).
  returned: success
  type: list
  elements: str
root:
  description: Whether the module ran as root.
  returned: success
  type: bool
"""

import os
import re
import shutil

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host import (
    cuda,
    nvshmem,
    procfs,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.root import (
    HostRoot,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_venv import (
    VenvError,
    build_info,
    inspect_python,
    inspect_venv,
    run,
    venv_python,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def gpu_architectures() -> list[str]:
    """Compute capabilities of the host's GPUs without the dot ("90"); empty when unknown."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return []
    try:
        answer = run([smi, "--query-gpu=compute_cap", "--format=csv,noheader"])
    except VenvError:
        return []
    lines = [line.strip().replace(".", "") for line in answer.splitlines()]
    return sorted({line for line in lines if line.isdigit()})


def nvcc_version(nvcc: str | None) -> str | None:
    """The release of ``nvcc`` ("13.0.88"), as it says itself; None where none runs."""
    if nvcc is None:
        return None
    try:
        match = re.search(r"\bV(\d+\.\d+\.\d+)", run([nvcc, "--version"]))
    except VenvError:
        return None
    return match.group(1) if match else None


def nvshmem_copy(prefix: str) -> dict[str, str] | None:
    """Prefix and version of the NVSHMEM below ``prefix``, by its header; None without one."""
    header = HostRoot("/").text(f"{prefix}/include/non_abi/nvshmem_version.h") if prefix else None
    version = nvshmem.header_version(header or "")
    return None if version is None else {"prefix": prefix, "version": version}


def cuda_facts(nvshmem_prefix: str) -> dict[str, Any]:
    """What a build with CUDA kernels would use on this host."""
    host = HostRoot("/")
    version, _flavour = procfs.driver_version(host)
    found = cuda.facts(host, version)
    compiler = nvcc_version(found["nvcc"])
    return {
        "compiler": found["nvcc"] if compiler else None,
        "version": compiler,
        "driver_major": found["driver_major"],
        "architectures": gpu_architectures(),
        "nvshmem": nvshmem_copy(nvshmem_prefix),
    }


def working_runtime(venv: str, state: dict[str, Any]) -> dict[str, Any] | None:
    """What the runtime in ``venv`` says of itself; None when it is missing or does not work."""
    if state["installed"] is None:
        return None
    try:
        return build_info(venv_python(venv), state["drop_in"] is not None)
    except VenvError:
        return None


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "python": {"type": "str", "default": "python3"},
            "venv": {"type": "path", "required": True},
            "requirements": {"type": "list", "elements": "str", "default": []},
            "extras": {"type": "list", "elements": "str", "default": []},
            "nvshmem": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        venv = inspect_venv(given["venv"], given["requirements"], given["extras"])
    except VenvError as error:
        module.fail_json(msg=f"The virtual environment {given['venv']} cannot be read: {error}")
    python = venv["python"] or inspect_python(given["python"])
    if python is None:
        missing = ["python", "venv", "headers"]
    else:
        missing = [tool for tool in ("venv", "headers") if not python[tool]]
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        missing.append("compiler")
    module.exit_json(
        changed=False,
        python=python,
        venv=venv,
        build_info=working_runtime(given["venv"], venv),
        cuda=cuda_facts(given["nvshmem"]),
        missing_tools=missing,
        root=os.geteuid() == 0,
    )


if __name__ == "__main__":
    main()
