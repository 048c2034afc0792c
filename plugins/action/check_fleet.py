# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Action check_fleet: refuse a run with bad input before it changes anything.

Runs on the controller and connects to nothing.
"""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import inputs
from ansible_collections.epfleet.expert_parallel.plugins.plugin_utils.role_defaults import (
    ROLES,
    role_defaults,
)

_ROLE_VARIABLES = {
    "nvshmem": ("nvshmem_version", "nvshmem_cuda_major"),
    "ep_benchmark": (
        "ep_benchmark_num_tokens",
        "ep_benchmark_hidden",
        "ep_benchmark_num_experts",
        "ep_benchmark_num_topk",
        "ep_benchmark_ranks_per_host",
        "ep_benchmark_runs",
        "ep_benchmark_uneven",
        "ep_benchmark_dtype",
    ),
}

_ADDRESSES = ("mirror", "pip_args")


class ActionModule(ActionBase):  # type: ignore[misc]  # Ansible ships no types
    """See the documentation of module check_fleet."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Check one stage and fail with every problem found, one sentence each."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables: dict[str, Any] = task_vars or {}
        _validated, arguments = self.validate_argument_spec(
            argument_spec={
                "stage": {
                    "type": "str",
                    "required": True,
                    "choices": ["inventory", "host", "fleet"],
                },
                "hosts": {"type": "list", "elements": "str", "default": []},
                "pattern": {"type": "str", "default": "ep_fleet"},
                "benchmark": {"type": "bool", "default": True},
            }
        )
        if arguments["stage"] == "inventory":
            problems = self._inventory(arguments["hosts"], arguments["pattern"])
        elif arguments["stage"] == "host":
            own = self._own(variables)
            settings = inputs.settings(own)
            problems = inputs.host_problems(own, settings)
            problems += inputs.line_problems({**self._role_variables(variables), **own})
            # Facts are shown, and cached where that is on: addresses may hold passwords.
            told = {name: value for name, value in settings.items() if name not in _ADDRESSES}
            result["ansible_facts"] = {"epfleet_settings": told}
        else:
            problems = self._fleet(arguments["hosts"], variables, arguments["benchmark"])
        if problems:
            raise AnsibleError(" ".join(problems))
        result["changed"] = False
        return result

    @staticmethod
    def _inventory(hosts: list[str], pattern: str) -> list[str]:
        if hosts:
            return []
        return [
            f"epfleet_hosts is {pattern!r}, and the inventory has no host there; put the fleet's"
            f" hosts in the group, or name another pattern with -e epfleet_hosts=PATTERN."
        ]

    def _own(self, variables: dict[str, Any]) -> dict[str, Any]:
        """The variables that this host's run would use, role defaults included."""
        names = ["epfleet_" + name for name in inputs.SETTINGS]
        own = {name: self._templar.template(variables[name]) for name in names if name in variables}
        for role, role_variables in _ROLE_VARIABLES.items():
            defaults = role_defaults(role)
            for name in role_variables:
                value = variables.get(name, defaults.get(name))
                if name in variables or not self._templar.is_template(value):
                    own[name] = self._templar.template(value)
        return own

    def _role_variables(self, variables: dict[str, Any]) -> dict[str, Any]:
        """What this host sets of the roles' variables, as far as it can be told yet."""
        given = {}
        for role in ROLES:
            for name in role_defaults(role):
                value = variables.get(name)
                # What has a template may need facts that are not read yet.
                if name in variables and not self._templar.is_template(value):
                    given[name] = value
        return given

    def _fleet(self, hosts: list[str], variables: dict[str, Any], benchmark: bool) -> list[str]:
        """Compare the hosts; ranks and experts are those that the benchmark would use."""
        fleet = {}
        for host in hosts:
            every = variables["hostvars"][host]
            picked: dict[str, Any] = {"epfleet": every["ansible_facts"]["epfleet"]}
            for role, names in _ROLE_VARIABLES.items():
                defaults = role_defaults(role)
                for name in names:
                    value = every[name] if name in every else defaults.get(name)
                    picked[name] = None if self._templar.is_template(value) else value
            fleet[host] = picked
        asked = variables.get("ansible_run_tags", ["all"])
        benchmark = benchmark and bool({"all", "ep_benchmark"} & set(asked))
        skipped = variables.get("ansible_skip_tags", [])
        return inputs.fleet_problems(fleet, benchmark and "ep_benchmark" not in skipped)
