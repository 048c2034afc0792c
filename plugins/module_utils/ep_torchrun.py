# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Starting one host's ranks under torchrun, watching them, and saying how they ended."""

from __future__ import annotations

import glob
import os
import re
import subprocess
import time
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.epfleet.expert_parallel.plugins.module_utils.ep_job import (
    RUN_VARIABLE,
    Job,
    end_processes,
    read_json,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.ep_network import answers

_POLL_S = 0.2
# How long ranks get to fail by themselves when the run is to end because others failed: the rank
# that began it all may be noticed last.
_LET_FAIL_S = 5.0
_LOG_TAIL_LINES = 20
_LOG_TAIL_BYTES = 16384

_FAILURE = re.compile(
    r"rank\s*:\s*(?P<rank>\d+) \(local_rank: (?P<local>\d+)\)\s*\n"
    r"\s*exitcode\s*:\s*(?P<code>-?\d+)"
)


@dataclass(frozen=True)
class Plan:
    """What one host runs. ``arguments`` are those of the benchmark, after its sub-command."""

    python: str
    node: int
    nodes: int
    ranks_per_node: int
    address: str
    interface: str
    master: str
    port: int
    host_name: str
    timeout_s: float
    arguments: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    grace_s: float = 10.0
    silence_s: float = 120.0
    meeting_s: float = 120.0

    def command(self, job: Job) -> list[str]:
        """The command line; ranks are fixed by the node's number."""
        return [
            self.python,
            *("-m", "torch.distributed.run"),
            *("--nnodes", str(self.nodes)),
            *("--node-rank", str(self.node)),
            *("--nproc-per-node", str(self.ranks_per_node)),
            *("--master-addr", self.master),
            *("--master-port", str(self.port)),
            *("--local-addr", self.address),
            *("--max-restarts", "0"),
            # Long enough for ranks that run into the same time limit to say so, each of them,
            # before torchrun ends the rest.
            *("--monitor-interval", "1"),
            *("--redirects", "3"),
            *("--log-dir", job.path("logs")),
            *("--module", "ep_runtime.bench", "low-latency"),
            *self.arguments,
            *("--per-rank-dir", job.path("ranks")),
            *("--run-id", job.run_id),
            *("--output", job.path("report.json")),
        ]

    def variables(self, job: Job) -> dict[str, str]:
        """The environment of the ranks. The caller's own settings win over ours."""
        ours = {
            "EP_BENCH_HOST": self.host_name,
            "GLOO_SOCKET_IFNAME": self.interface,
            "NCCL_SOCKET_IFNAME": self.interface,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        # Only what the ranks are told: torchrun variables of a shell around us would confuse them.
        hidden = ("PYTHONPATH", "PYTHONHOME", "RANK", "WORLD_SIZE", "LOCAL_RANK")
        inherited = {name: value for name, value in os.environ.items() if name not in hidden}
        return {**inherited, **ours, **self.environment, RUN_VARIABLE: job.mark}


def supervise(plan: Plan, job: Job) -> dict[str, Any]:
    """Run ``plan`` to its end and return the outcome. Leaves no process of it behind.

    The outcome's ``state`` is ``passed``, ``failed``, ``timeout``, ``unmet`` (the first host did
    not answer), ``abandoned`` (nobody asks for the run any more) or ``stopped``.
    Raises ``OSError`` when nothing could be started.
    """
    began = time.monotonic()
    if plan.node > 0 and not _wait_for_master(plan, job):
        asked = job.stop_asked()
        if asked is not None:
            return _outcome("stopped", began, asked)
        where = f"{plan.master}:{plan.port}"
        return _outcome(
            "unmet",
            began,
            f"{where} (the first host) did not answer within {plan.meeting_s:g} s from "
            f"{plan.address} on {plan.interface}",
        )
    os.makedirs(job.path("logs"), exist_ok=True)
    with open(job.path("torchrun.log"), "wb") as log:
        agent = subprocess.Popen(
            plan.command(job),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=job.directory,
            env=plan.variables(job),
            start_new_session=True,
        )
    job.note_started(agent.pid)
    try:
        state, why = _watch(plan, job, agent, began)
    finally:
        if agent.poll() is None:
            end_processes(job, plan.grace_s)
            agent.wait()
    # torchrun has ended; a rank that it could not end must not outlive it.
    end_processes(job, 0.0)
    outcome = _outcome(state, began, why)
    outcome["ranks"] = rank_results(job)
    if state != "passed":
        outcome["failures"] = failures(plan, job)
        outcome["log"] = (
            tail(job.path("torchrun.log")) if state == "failed" else rank_tails(plan, job)
        )
    return outcome


def failure_to_start(error: OSError) -> dict[str, Any]:
    """The outcome when not even torchrun could be started."""
    return _outcome("unstarted", time.monotonic(), f"torchrun could not be started: {error}")


def _outcome(state: str, began: float, why: str) -> dict[str, Any]:
    return {
        "state": state,
        "why": why,
        "seconds": round(time.monotonic() - began, 1),
        "ended": time.time(),
        "ranks": [],
        "failures": [],
        "log": [],
    }


def _wait_for_master(plan: Plan, job: Job) -> bool:
    deadline = time.monotonic() + plan.meeting_s
    while not answers(plan.master, plan.port, timeout_s=2.0):
        if time.monotonic() > deadline or job.stop_asked() is not None:
            return False
        time.sleep(_POLL_S)
    return True


def _watch(plan: Plan, job: Job, agent: subprocess.Popen[bytes], began: float) -> tuple[str, str]:
    stop_at = float("inf")
    while True:
        code = agent.poll()
        if code is not None:
            return ("passed", "") if code == 0 else ("failed", f"torchrun ended with {code}")
        asked = job.stop_asked()
        if asked is not None:
            stop_at = min(stop_at, time.monotonic() + _LET_FAIL_S)
            if time.monotonic() >= stop_at:
                return "stopped", asked
        if job.silence_s() > plan.silence_s:
            return "abandoned", f"nobody asked for this run for {plan.silence_s:g} s"
        if time.monotonic() - began > plan.timeout_s:
            return "timeout", f"the ranks did not end within {plan.timeout_s:g} s"
        time.sleep(_POLL_S)


def rank_results(job: Job) -> list[dict[str, Any]]:
    """What each rank of this node left: ``rank``, ``run_id`` and ``status``."""
    found = []
    for path in sorted(glob.glob(os.path.join(glob.escape(job.path("ranks")), "rank-*.json"))):
        content = read_json(path)
        if content is not None:
            found.append({name: content.get(name) for name in ("rank", "run_id", "status")})
    return found


def failures(plan: Plan, job: Job) -> list[dict[str, Any]]:
    """The ranks of this node that failed by themselves, each with the end of its log.

    torchrun ends the others with SIGTERM; they are left out.
    """
    with open(job.path("torchrun.log"), encoding="utf-8", errors="replace") as stream:
        codes = failed_ranks(stream.read())
    for result in rank_results(job):
        if str(result["status"]) != "passed":
            codes.setdefault(int(result["rank"]), None)
    return [
        {"rank": rank, "exit_code": code, "log": tail(rank_log(plan, job, rank))}
        for rank, code in sorted(codes.items())
    ]


def rank_log(plan: Plan, job: Job, rank: int) -> str:
    """The path of the standard error of one of this node's ranks; empty when there is none."""
    local = rank - plan.node * plan.ranks_per_node
    attempt = os.path.join(glob.escape(job.path("logs")), "*", "attempt_*", str(local))
    return max(glob.glob(os.path.join(attempt, "stderr.log")), default="")


def rank_tails(plan: Plan, job: Job) -> list[str]:
    """The last words of each of this node's ranks, for a run that did not end by itself."""
    first = plan.node * plan.ranks_per_node
    lines = []
    for rank in range(first, first + plan.ranks_per_node):
        words = tail(rank_log(plan, job, rank))[-3:] or ["(nothing)"]
        lines += [f"rank {rank}: {line}" for line in words]
    return lines[:_LOG_TAIL_LINES]


def failed_ranks(torchrun_log: str) -> dict[int, int | None]:
    """Exit codes by rank from torchrun's last words, without the ranks it ended itself."""
    codes = {
        int(match.group("rank")): int(match.group("code"))
        for match in _FAILURE.finditer(torchrun_log)
    }
    own: dict[int, int | None] = {rank: code for rank, code in codes.items() if code != -15}
    return own or dict(codes)


def tail(path: str) -> list[str]:
    """The last lines of a log; empty when it cannot be read."""
    try:
        with open(path, "rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - _LOG_TAIL_BYTES))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-_LOG_TAIL_LINES:]
