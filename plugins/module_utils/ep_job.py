# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""A benchmark run on one host, as files that its launcher, its watchers and its enders share.

Processes are known by what was noted when they were started (group and start time) and by the
run's identifier in their environment, never by name: a launcher may die before its ranks do,
and torchrun starts each rank in a session of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from typing import Any

RUN_VARIABLE = "EPFLEET_RUN_ID"

# Where rank 0 says how far the run is.
PROGRESS = "progress"

_JOB = "job.json"
_RESULT = "result.json"
_HEARTBEAT = "heartbeat"
_STOP = "stop"
_PREFIX = "run-"


def write_json(path: str, content: dict[str, Any]) -> None:
    """Write ``content`` so that a reader sees all of it or nothing."""
    fresh = f"{path}.{os.getpid()}.new"
    with open(fresh, "w", encoding="utf-8") as stream:
        json.dump(content, stream, indent=1, sort_keys=True)
        stream.write("\n")
    os.rename(fresh, path)


def read_json(path: str) -> dict[str, Any] | None:
    """Return the object in ``path``, or None when there is none."""
    try:
        with open(path, encoding="utf-8") as stream:
            content = json.load(stream)
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


class Job:
    """One node's part of one run, below ``workdir``."""

    def __init__(self, workdir: str, run_id: str, node: int) -> None:
        self.run_id = run_id
        # Several nodes of a run may share a host (and do in tests), so a node has its own mark.
        self.mark = f"{run_id}/{node}"
        self.directory = os.path.join(workdir, _PREFIX + run_id, f"node-{node}")

    def path(self, name: str) -> str:
        """The path of a file of this job."""
        return os.path.join(self.directory, name)

    def create(self) -> None:
        """Make the job's directory and note this process as its launcher."""
        os.makedirs(self.directory, mode=0o755, exist_ok=True)
        self.beat()
        self.note_started()

    def note_started(self, agent: int | None = None) -> None:
        """Note this process, and torchrun's (srun's, mpirun's), by identifier and start time."""
        launcher = os.getpid()
        noted: dict[str, Any] = {
            "run_id": self.run_id,
            "launcher": [launcher, start_time(launcher)],
        }
        if agent is not None:
            noted["agent"] = [agent, start_time(agent)]
        write_json(self.path(_JOB), noted)

    def started(self) -> dict[str, Any] | None:
        """What ``note_started`` noted; None before."""
        return read_json(self.path(_JOB))

    def finish(self, result: dict[str, Any]) -> None:
        """Leave the outcome."""
        write_json(self.path(_RESULT), result)

    def result(self) -> dict[str, Any] | None:
        """The outcome, or None while the job runs."""
        return read_json(self.path(_RESULT))

    def progress(self) -> str:
        """What rank 0 last said about how far the run is; empty where it runs elsewhere."""
        try:
            with open(self.path(PROGRESS), encoding="utf-8", errors="replace") as stream:
                return stream.read().strip()
        except OSError:
            return ""

    def beat(self) -> None:
        """Tell the launcher that somebody still waits for it."""
        with open(self.path(_HEARTBEAT), "w", encoding="ascii"):
            pass

    def silence_s(self) -> float:
        """Seconds since the last ``beat``."""
        try:
            return time.time() - os.path.getmtime(self.path(_HEARTBEAT))
        except OSError:
            return float("inf")

    def ask_to_stop(self, why: str) -> None:
        """Ask the launcher to end the run; it notes ``why``."""
        with contextlib.suppress(FileNotFoundError):
            write_json(self.path(_STOP), {"why": why})

    def stop_asked(self) -> str | None:
        """Why the launcher shall end the run, or None."""
        asked = read_json(self.path(_STOP))
        return None if asked is None else str(asked.get("why"))


def start_time(pid: int) -> int | None:
    """Clock ticks since boot at which process ``pid`` began; None when there is no such process.

    With the identifier it names a process for good, since identifiers are used again.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            fields = stream.read().rpartition(")")[2].split()
    except OSError:
        return None
    # The state is the first field after the name; a zombie has ended.
    return None if fields[0] in "ZX" else int(fields[19])


def alive(noted: list[Any] | None) -> bool:
    """Return whether the process noted as [identifier, start time] still runs."""
    return noted is not None and noted[1] is not None and start_time(noted[0]) == noted[1]


def processes_of(job: Job) -> list[int]:
    """Return the processes that have the job's mark in their environment."""
    marker = f"{RUN_VARIABLE}={job.mark}".encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as stream:
                variables = stream.read().split(b"\0")
        except OSError:
            continue
        if marker in variables and start_time(int(name)) is not None:
            found.append(int(name))
    return found


# A killed process is gone only when the kernel has torn it down, also when no grace was given.
_KILL_WAIT_S = 10.0


def end_processes(job: Job, grace_s: float) -> int:
    """End the job's processes; return how many had to be killed.

    torchrun (srun, mpirun) is asked first, because it then ends its ranks in order, those on other
    hosts too.
    """
    deadline = time.monotonic() + grace_s
    agent = (job.started() or {}).get("agent")
    if agent is not None and alive(agent):
        with contextlib.suppress(OSError):
            os.killpg(agent[0], signal.SIGTERM)
    while processes_of(job) and time.monotonic() < deadline:
        time.sleep(0.1)
    killed = set()
    give_up = time.monotonic() + _KILL_WAIT_S
    while True:
        left = processes_of(job)
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        if not left or time.monotonic() > give_up:
            return len(killed)
        time.sleep(0.05)


def other_runs(workdir: str, run_id: str) -> list[str]:
    """Return the identifiers of the runs below ``workdir`` other than ``run_id``."""
    try:
        names = sorted(os.listdir(workdir))
    except OSError:
        return []
    runs = [name[len(_PREFIX) :] for name in names if name.startswith(_PREFIX)]
    return [run for run in runs if run != run_id]


def nodes_of(workdir: str, run_id: str) -> list[int]:
    """Return the numbers of the nodes that have a part of the run on this host."""
    try:
        names = os.listdir(os.path.join(workdir, _PREFIX + run_id))
    except OSError:
        return []
    parts = [name.rpartition("-")[2] for name in names if name.startswith("node-")]
    return sorted(int(part) for part in parts if part.isdigit())


def end_job(job: Job, why: str, grace_s: float) -> bool:
    """End one node's part of a run, launcher and all; return whether it was still going."""
    started = job.started() or {}
    launcher = started.get("launcher")
    going = alive(launcher) and job.result() is None
    if going:
        job.ask_to_stop(why)
        deadline = time.monotonic() + 3 * grace_s
        while alive(launcher) and job.result() is None and time.monotonic() < deadline:
            time.sleep(0.1)
    # A launcher that was killed leaves its ranks to us.
    return end_processes(job, grace_s if processes_of(job) else 0.0) > 0 or going


def remove_run(workdir: str, run_id: str) -> None:
    """Remove everything of a run that has ended."""
    shutil.rmtree(os.path.join(workdir, _PREFIX + run_id), ignore_errors=True)
