# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Starting a run's ranks by a launcher, watching them, and saying how they ended.

With torchrun there is a launcher on each host; srun and mpirun run on the first host for all.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.epfleet.expert_parallel.plugins.module_utils import ep_launchers
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.ep_job import (
    PROGRESS,
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

_REPORT = "report.json"
_LAUNCHER_LOG = "launcher.log"
_HOSTFILE = "hostfile"


@dataclass(frozen=True)
class Plan:
    """What one host runs. ``arguments`` are those of the benchmark, after its sub-command.

    ``launch_nodes`` and ``host_names`` are for a launcher that starts all ranks: what it knows the
    hosts by, and their names in results, in rank order.
    """

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
    launcher: str = ep_launchers.TORCHRUN
    launcher_arguments: list[str] = field(default_factory=list)
    launch_nodes: list[str] = field(default_factory=list)
    host_names: list[str] = field(default_factory=list)

    @property
    def starts_all(self) -> bool:
        """Whether this launcher starts the ranks of all hosts."""
        return ep_launchers.starts_all(self.launcher)

    @property
    def ranks(self) -> range:
        """The ranks that this launcher starts."""
        if self.starts_all:
            return range(self.nodes * self.ranks_per_node)
        first = self.node * self.ranks_per_node
        return range(first, first + self.ranks_per_node)

    def start(self, job: Job) -> ep_launchers.Start:
        """What a launcher that starts all ranks is told."""
        return ep_launchers.Start(
            nodes=self.launch_nodes,
            ranks_per_node=self.ranks_per_node,
            program=[
                self.python,
                *("-m", "ep_runtime.bench", "low-latency"),
                *self.arguments,
                *("--run-id", job.run_id),
                *("--output", job.path(_REPORT)),
            ],
            variables=sorted(self.own_variables(job)),
            arguments=self.launcher_arguments,
        )

    def command(self, job: Job) -> list[str]:
        """The launcher's command line; ranks are fixed by the node's number, or by the order."""
        if self.launcher == ep_launchers.SRUN:
            return ep_launchers.srun(self.start(job))
        if self.launcher == ep_launchers.MPIRUN:
            return ep_launchers.mpirun(self.start(job))
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
            *self.launcher_arguments,
            *("--module", "ep_runtime.bench", "low-latency"),
            *self.arguments,
            *("--per-rank-dir", job.path("ranks")),
            *("--run-id", job.run_id),
            *("--output", job.path(_REPORT)),
        ]

    def own_variables(self, job: Job) -> dict[str, str]:
        """The variables that every rank gets. The caller's own settings win over ours."""
        ours = {
            "GLOO_SOCKET_IFNAME": self.interface,
            "NCCL_SOCKET_IFNAME": self.interface,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "EP_BENCH_PROGRESS": job.path(PROGRESS),
        }
        if self.starts_all:
            ours["MASTER_ADDR"], ours["MASTER_PORT"] = self.master, str(self.port)
            ours["EP_BENCH_HOSTS"] = ",".join(self.host_names)
        else:
            ours["EP_BENCH_HOST"] = self.host_name
        return {**ours, **self.environment, RUN_VARIABLE: job.mark}

    def variables(self, job: Job) -> dict[str, str]:
        """The launcher's environment."""
        inherited = {name: value for name, value in os.environ.items() if not _confuses(name)}
        found = {**inherited, **self.own_variables(job)}
        if self.launcher == ep_launchers.SRUN:
            found["SLURM_HOSTFILE"] = job.path(_HOSTFILE)
        if self.launcher == ep_launchers.MPIRUN and os.geteuid() == 0:
            # The roles become root, and mpirun wants to hear twice that this is meant.
            found["OMPI_ALLOW_RUN_AS_ROOT"] = found["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
        return found


def _confuses(name: str) -> bool:
    """Whether a variable of a shell around us would tell ranks what they are, or their Python."""
    return name in ("PYTHONPATH", "PYTHONHOME", "RANK", "WORLD_SIZE", "LOCAL_RANK") or (
        name.startswith(("OMPI_COMM_WORLD_", "SLURM_PROCID", "SLURM_LOCALID"))
    )


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
    if plan.starts_all:
        with open(job.path(_HOSTFILE), "w", encoding="utf-8") as stream:
            stream.write(ep_launchers.hostfile(plan.start(job)))
    with open(job.path(_LAUNCHER_LOG), "wb") as log:
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
    # The launcher has ended; a rank that it could not end must not outlive it.
    end_processes(job, 0.0)
    outcome = _outcome(state, began, why)
    outcome["ranks"] = rank_results(plan, job)
    if state != "passed":
        outcome["failures"] = failures(plan, job)
        outcome["log"] = (
            tail(job.path(_LAUNCHER_LOG)) if state == "failed" else rank_tails(plan, job)
        )
    return outcome


def failure_to_start(plan: Plan, error: OSError) -> dict[str, Any]:
    """The outcome when not even the launcher could be started."""
    return _outcome("unstarted", time.monotonic(), f"{plan.launcher} could not be started: {error}")


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
            ended = f"{plan.launcher} ended with {code}"
            return ("passed", "") if code == 0 else ("failed", ended)
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


def rank_results(plan: Plan, job: Job) -> list[dict[str, Any]]:
    """What each rank of this launcher left: ``rank``, ``run_id`` and ``status``."""
    found = []
    if plan.starts_all:
        # Ranks of other hosts leave nothing here but their part of the report.
        report = read_json(job.path(_REPORT)) or {}
        for rank in range(int(report.get("ranks", 0))):
            status = report.get("correctness")
            found.append({"rank": rank, "run_id": report.get("run_id"), "status": status})
        return found
    for path in sorted(glob.glob(os.path.join(glob.escape(job.path("ranks")), "rank-*.json"))):
        content = read_json(path)
        if content is not None:
            found.append({name: content.get(name) for name in ("rank", "run_id", "status")})
    return found


def failures(plan: Plan, job: Job) -> list[dict[str, Any]]:
    """The ranks of this launcher that failed by themselves, each with its log and the log's end.

    The launcher ends the others with SIGTERM; they are left out.
    """
    codes = ep_launchers.failed_ranks(plan.launcher, _read(job.path(_LAUNCHER_LOG)))
    for result in rank_results(plan, job):
        if str(result["status"]) != "passed":
            codes.setdefault(int(result["rank"]), None)
    found = []
    for rank, code in sorted(codes.items()):
        path = rank_log(plan, job, rank)
        found.append({"rank": rank, "exit_code": code, "path": path, "log": tail(path)})
    return found


def rank_log(plan: Plan, job: Job, rank: int) -> str:
    """Give the log of a rank a place that follows from its number; return the path.

    Empty when the rank has left no log.
    """
    place = os.path.join(job.path("logs"), f"rank-{rank}.log")
    if plan.starts_all:
        lines = ep_launchers.lines_of(plan.launcher, _read(job.path(_LAUNCHER_LOG)), rank)
        if not lines:
            return ""
        with open(place, "w", encoding="utf-8") as stream:
            stream.writelines(line + "\n" for line in lines)
        return place
    local = rank - plan.ranks.start
    attempt = os.path.join(glob.escape(job.path("logs")), "*", "attempt_*", str(local))
    source = max(glob.glob(os.path.join(attempt, "stderr.log")), default="")
    return shutil.copyfile(source, place) if source else ""


def rank_tails(plan: Plan, job: Job) -> list[str]:
    """The last words of each of this launcher's ranks, for a run that did not end by itself."""
    lines = []
    for rank in plan.ranks:
        words = tail(rank_log(plan, job, rank))[-3:] or ["(nothing)"]
        lines += [f"rank {rank}: {line}" for line in words]
        if len(lines) >= _LOG_TAIL_LINES:
            break
    return lines[:_LOG_TAIL_LINES]


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read()


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
