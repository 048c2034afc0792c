# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""How ranks are started: the command lines of the launchers, and how each says which rank failed.

torchrun starts the ranks of its own host, so there is one on every host. srun and Open MPI's mpirun
run on the first host only and start the ranks of all; every line of a rank's output then comes with
the rank's number.
"""

from __future__ import annotations

import re
import signal
from typing import Callable, Dict, List, NamedTuple, Optional

TORCHRUN, SRUN, MPIRUN = "torchrun", "srun", "mpirun"
LAUNCHERS = (TORCHRUN, SRUN, MPIRUN)

# The rank that a line of output is from, and the line. Either stream, since mpirun tells which.
_LABELS = {
    SRUN: re.compile(r"^ *(?P<rank>\d+): ?(?P<text>.*)$"),
    MPIRUN: re.compile(r"^\[\d+,(?P<rank>\d+)\]<std(?:out|err)>: ?(?P<text>.*)$"),
}

_TORCHRUN_FAILURE = re.compile(
    r"rank\s*:\s*(?P<rank>\d+) \(local_rank: (?P<local>\d+)\)\s*\n"
    r"\s*exitcode\s*:\s*(?P<code>-?\d+)"
)
_SRUN_FAILURE = re.compile(r"^srun: error: \S+: tasks? (?P<tasks>[\d,\-]+): (?P<how>.+)$", re.M)
_SRUN_CODE = re.compile(r"Exited with exit code (\d+)")
# The names may be on the next lines; a job may have been restarted, so its number is not looked at.
_MPIRUN_CODE = re.compile(
    r"Process name: \[\[\d+,\d+\],(?P<rank>\d+)\]\s*Exit code:\s*(?P<code>\d+)"
)
_MPIRUN_SIGNAL = re.compile(
    r"process rank (?P<rank>\d+) with PID \d+ on node \S+ exited on\s+signal (?P<number>\d+)"
)


class Start(NamedTuple):
    """What a launcher is to start: ``ranks_per_node`` ranks of ``program`` on each of ``nodes``.

    ``nodes`` are what the launcher knows the hosts by, in rank order: Slurm's node names, or
    addresses. ``variables`` are the names of those that every rank must have.
    """

    nodes: List[str]
    ranks_per_node: int
    program: List[str]
    variables: List[str]
    arguments: List[str]


def starts_all(launcher: str) -> bool:
    """Whether one launcher on the first host starts the ranks of all hosts."""
    return launcher != TORCHRUN


def srun(start: Start) -> List[str]:
    """The command line for Slurm. The order of the nodes is that of $SLURM_HOSTFILE."""
    return [
        SRUN,
        f"--nodes={len(start.nodes)}",
        f"--ntasks={len(start.nodes) * start.ranks_per_node}",
        # Slurm sorts a list of nodes; only a file of them keeps its order.
        "--distribution=arbitrary",
        "--label",
        "--unbuffered",
        "--kill-on-bad-exit=1",
        "--export=ALL",
        *start.arguments,
        *start.program,
    ]


def mpirun(start: Start) -> List[str]:
    """The command line for Open MPI 4 and 5."""
    slots = ",".join(f"{node}:{start.ranks_per_node}" for node in start.nodes)
    return [
        MPIRUN,
        *("-np", str(len(start.nodes) * start.ranks_per_node)),
        *("--host", slots),
        *("--map-by", "slot"),
        *("--bind-to", "none"),
        "--tag-output",
        *(word for name in start.variables for word in ("-x", name)),
        *start.arguments,
        *start.program,
    ]


def hostfile(start: Start) -> str:
    """The content of $SLURM_HOSTFILE: a line for each rank."""
    return "".join(f"{node}\n" * start.ranks_per_node for node in start.nodes)


def lines_of(launcher: str, log: str, rank: int) -> List[str]:
    """The lines of ``rank`` in the log of a launcher that starts all ranks."""
    found = []
    for line in log.splitlines():
        match = _LABELS[launcher].match(line)
        if match is not None and int(match.group("rank")) == rank:
            found.append(match.group("text"))
    return found


def failed_ranks(launcher: str, log: str) -> Dict[int, Optional[int]]:
    """Exit codes by rank from the launcher's last words; -N for signal N.

    Without the ranks that the launcher ended itself, unless there are no others.
    """
    codes = _FAILED[launcher](log)
    own = {rank: code for rank, code in codes.items() if code != -signal.SIGTERM}
    return own or codes


def _torchrun_failed(log: str) -> Dict[int, Optional[int]]:
    return {
        int(match.group("rank")): int(match.group("code"))
        for match in _TORCHRUN_FAILURE.finditer(log)
    }


def _srun_failed(log: str) -> Dict[int, Optional[int]]:
    codes: Dict[int, Optional[int]] = {}
    for match in _SRUN_FAILURE.finditer(log):
        exited = _SRUN_CODE.search(match.group("how"))
        code = int(exited.group(1)) if exited else _signal_named(match.group("how"))
        for part in match.group("tasks").split(","):
            first, _dash, last = part.partition("-")
            for rank in range(int(first), int(last or first) + 1):
                codes.setdefault(rank, code)
    # What srun kills once one task has failed ends by SIGKILL as well; the first one told is it.
    if len(codes) > 1 and len(set(codes.values())) > 1:
        first_rank = next(iter(codes))
        codes = {
            rank: code
            for rank, code in codes.items()
            if rank == first_rank or code != -signal.SIGKILL
        }
    return codes


def _signal_named(words: str) -> Optional[int]:
    """The negated number of the signal that ``strsignal`` describes so; None for other words."""
    for number in signal.Signals:
        description = signal.strsignal(number)
        if description and words.startswith(description):
            return -int(number)
    return None


def _mpirun_failed(log: str) -> Dict[int, Optional[int]]:
    codes: Dict[int, Optional[int]] = {}
    for match in _MPIRUN_CODE.finditer(log):
        codes[int(match.group("rank"))] = int(match.group("code"))
    for match in _MPIRUN_SIGNAL.finditer(log):
        codes[int(match.group("rank"))] = -int(match.group("number"))
    return codes


_FAILED: Dict[str, Callable[[str], Dict[int, Optional[int]]]] = {
    TORCHRUN: _torchrun_failed,
    SRUN: _srun_failed,
    MPIRUN: _mpirun_failed,
}
