"""Command lines of the launchers, and what their last words say about ranks."""

from __future__ import annotations

import textwrap

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import ep_launchers

START = ep_launchers.Start(
    nodes=["nodea", "nodeb"],
    ranks_per_node=2,
    program=["python", "-m", "ep_runtime.bench"],
    variables=["EP_BENCH_HOSTS", "GLOO_SOCKET_IFNAME"],
    arguments=["--account=fleet"],
)


def test_torchruns_last_words_are_understood():
    log = textwrap.dedent(
        """
        Failures:
        [1]:
          time      : 2026-11-30_09:37:00
          host      : localhost
          rank      : 2 (local_rank: 0)
          exitcode  : -15 (pid: 17364)  (SIGTERM)
          error_file: <N/A>
        Root Cause (first observed failure):
        [0]:
          time      : 2026-11-30_09:37:00
          host      : localhost
          rank      : 3 (local_rank: 1)
          exitcode  : 124 (pid: 17365)
        """
    )
    assert ep_launchers.failed_ranks("torchrun", log) == {3: 124}
    assert ep_launchers.failed_ranks("torchrun", "nothing of the kind") == {}


def test_srun_keeps_the_order_of_the_hosts():
    command = ep_launchers.srun(START)
    assert command[:3] == ["srun", "--nodes=2", "--ntasks=4"]
    assert "--distribution=arbitrary" in command  # the order of $SLURM_HOSTFILE
    assert ep_launchers.hostfile(START) == "nodea\nnodea\nnodeb\nnodeb\n"
    assert command[-4:] == ["--account=fleet", *START.program]


def test_mpirun_fills_host_after_host_and_hands_variables_on():
    command = ep_launchers.mpirun(START)
    assert command[:5] == ["mpirun", "-np", "4", "--host", "nodea:2,nodeb:2"]
    assert command[command.index("-x") :][:4] == [
        "-x",
        "EP_BENCH_HOSTS",
        "-x",
        "GLOO_SOCKET_IFNAME",
    ]
    assert command[-4:] == ["--account=fleet", *START.program]


@pytest.mark.parametrize(
    ("words", "codes"),
    [
        ("srun: error: nodeb: task 3: Exited with exit code 7", {3: 7}),
        ("srun: error: nodeb: task 3: Killed", {3: -9}),
        ("srun: error: nodeb: task 3: Segmentation fault (core dumped)", {3: -11}),
        ("srun: error: nodea: tasks 0,2-3: Exited with exit code 1", {0: 1, 2: 1, 3: 1}),
        (
            "srun: error: nodeb: task 3: Exited with exit code 7\n"
            "srun: error: nodea: tasks 0-1: Terminated\n"
            "srun: error: nodeb: task 2: Killed",
            {3: 7},
        ),
        ("srun: error: Unable to allocate resources: Invalid account", {}),
    ],
)
def test_sruns_last_words_are_understood(words, codes):
    assert ep_launchers.failed_ranks("srun", words) == codes


# As Open MPI 4.1.4 writes them.
MPIRUN_EXITED = """\
--------------------------------------------------------------------------
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
--------------------------------------------------------------------------
--------------------------------------------------------------------------
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[52437,1],2]
  Exit code:    3
--------------------------------------------------------------------------
"""
MPIRUN_KILLED = """\
--------------------------------------------------------------------------
mpirun noticed that process rank 1 with PID 0 on node nodea exited on signal 9 (Killed).
--------------------------------------------------------------------------
"""


@pytest.mark.parametrize(("words", "codes"), [(MPIRUN_EXITED, {2: 3}), (MPIRUN_KILLED, {1: -9})])
def test_mpiruns_last_words_are_understood(words, codes):
    assert ep_launchers.failed_ranks("mpirun", words) == codes


@pytest.mark.parametrize(
    ("launcher", "log"),
    [
        ("srun", " 1: one\n12: two\n 1: three\nsrun: error: x"),
        ("mpirun", "[1,1]<stderr>:one\n[1,12]<stderr>:two\n[1,1]<stdout>:three\nmpirun noticed"),
    ],
)
def test_lines_are_told_apart_by_rank(launcher, log):
    assert ep_launchers.lines_of(launcher, log, 1) == ["one", "three"]
    assert ep_launchers.lines_of(launcher, log, 12) == ["two"]
    assert ep_launchers.lines_of(launcher, log, 2) == []
