# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Action diagnose: findings from the facts of all hosts and from what the roles intend there.

Runs on the controller and connects to nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor import (
    page,
    report,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.diagnose import (
    blocking,
    diagnose_fleet,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.hostrange import (
    compact,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.model import (
    ERROR,
    RULES,
)
from ansible_collections.epfleet.expert_parallel.plugins.plugin_utils.role_defaults import (
    role_defaults,
)

PREFLIGHT, VERIFY, REPORT = "preflight", "verify", "report"
_TITLES = {
    PREFLIGHT: "Before the rollout",
    VERIFY: "Intended against live",
    REPORT: "Findings of the fleet",
}


class ActionModule(ActionBase):  # type: ignore[misc]  # Ansible ships no types
    """See the documentation of module diagnose."""

    TRANSFERS_FILES = False
    _supports_check_mode = True
    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Print the findings, write them where asked, and fail for the errors of the stage."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validated, arguments = self.validate_argument_spec(
            argument_spec={
                "hosts": {"type": "list", "elements": "str", "required": True},
                "stage": {"type": "str", "default": REPORT, "choices": [*_TITLES]},
                "accepted": {"type": "list", "elements": "str", "default": []},
                "output_dir": {"type": "str", "default": ""},
            }
        )
        hosts, stage = arguments["hosts"], arguments["stage"]
        unknown = [name for name in arguments["accepted"] if name not in RULES]
        if unknown:
            raise AnsibleError(
                f"epfleet_accepted_findings names {unknown[0]!r}, which is no finding; see"
                " docs/diagnose/README.md."
            )
        findings = self._findings(hosts, task_vars or {})
        self._display.display(report.table(findings, len(hosts)))
        if arguments["output_dir"] and not self._play_context.check_mode:
            self._write(Path(arguments["output_dir"]), findings, len(hosts), _TITLES[stage])
        stopping = [item for item in findings if item["severity"] == ERROR and stage == VERIFY]
        if stage == PREFLIGHT:
            stopping = blocking(findings)
        stopping = [item for item in stopping if item["id"] not in arguments["accepted"]]
        if stopping:
            raise AnsibleError(self._refusal(stopping, stage))
        result.update(
            changed=False, findings=findings, summary=report.summary(findings, len(hosts))
        )
        return result

    def _findings(self, hosts: list[str], variables: dict[str, Any]) -> list[dict[str, Any]]:
        fleet, intents = {}, {}
        for host in hosts:
            every = variables["hostvars"][host]
            facts = every.get("ansible_facts", {}).get("epfleet")
            if facts is None:
                raise AnsibleError(f"{host} was not read: run host_facts on it before diagnose.")
            fleet[host] = facts
            intents[host] = self._intent(every, facts, len(hosts))
        return diagnose_fleet(fleet, intents)

    @staticmethod
    def _intent(every: Any, facts: dict[str, Any], hosts: int) -> dict[str, Any]:
        """What the roles would do with the host's variables, their defaults included."""
        driver, benchmark = role_defaults("nvidia_driver"), role_defaults("ep_benchmark")

        def value(name: str, defaults: dict[str, Any]) -> Any:
            return every[name] if name in every else defaults[name]

        ranks = int(value("ep_benchmark_ranks_per_host", benchmark) or 0)
        return {
            "mode": every.get("epfleet_mode", "auto"),
            "options": value("nvidia_driver_options", driver),
            "dwords": value("nvidia_driver_registry_dwords", driver),
            "num_tokens": int(value("ep_benchmark_num_tokens", benchmark)),
            "num_experts": int(value("ep_benchmark_num_experts", benchmark)),
            "num_ranks": (ranks or facts["nvidia"]["gpu_count"]) * hosts or None,
        }

    @staticmethod
    def _write(folder: Path, findings: list[dict[str, Any]], hosts: int, title: str) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "findings.json").write_text(report.as_json(findings), encoding="utf-8")
            html = page.render(findings, hosts, title)
            (folder / "findings.html").write_text(html, encoding="utf-8")
        except OSError as error:
            raise AnsibleError(
                f"epfleet_findings_dir: the findings could not be written: {error}."
            ) from error

    @staticmethod
    def _refusal(stopping: list[dict[str, Any]], stage: str) -> str:
        groups = report.grouped(stopping)
        told = " ".join(
            f"[{item['id']} on {compact(item['hosts'])}] {item['title']}. {item['fix']}"
            for item in groups
        )
        if stage == PREFLIGHT:
            return (
                f"Nothing was changed. {len(groups)} kinds of errors keep the rollout from its"
                f" end, and no role mends them: {told} (epfleet_accepted_findings lets it"
                " begin regardless.)"
            )
        return f"The fleet is not as intended: {told}"
