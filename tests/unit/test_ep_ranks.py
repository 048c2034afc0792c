"""The launcher leaves an outcome and no process, however its ranks end.

``torchrun`` is played by a script that starts ranks in sessions of their own, as torchrun does.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import ep_ranks
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.ep_job import (
    RUN_VARIABLE,
    Job,
    end_job,
    nodes_of,
    other_runs,
    processes_of,
    remove_run,
)

# Stands for the interpreter of the virtual environment. The first argument of the benchmark says
# how the ranks behave.
AGENT = """\
#!{python}
import json, os, pathlib, signal, subprocess, sys, time
argv = sys.argv
value = lambda name: argv[argv.index(name) + 1]
how = argv[argv.index("low-latency") + 1]
if how == "broken":
    sys.exit("ModuleNotFoundError: No module named 'torch'")
first = int(value("--node-rank")) * int(value("--nproc-per-node"))
ranks = []
for local in range(int(value("--nproc-per-node"))):
    rank = first + local
    folder = pathlib.Path(value("--log-dir"), "none_x", "attempt_0", str(local))
    folder.mkdir(parents=True)
    (folder / "stderr.log").write_text("line of rank %d\\n" % rank)
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    if how in ("hang", "orphan"):
        ranks.append(subprocess.Popen([sys.executable, "-c", code], start_new_session=True))
        continue
    pathlib.Path(value("--per-rank-dir")).mkdir(exist_ok=True)
    status = "failed: wrong sum" if how == "wrong" and local == 1 else "passed"
    text = json.dumps({{"rank": rank, "run_id": value("--run-id"), "status": status}})
    pathlib.Path(value("--per-rank-dir"), "rank-%d.json" % rank).write_text(text)
if how == "orphan":
    os.kill(os.getpid(), signal.SIGKILL)
if how == "hang":
    time.sleep(600)
if how == "fail":
    for rank, code in ((first, -15), (first + 1, -9)):
        print("  rank      : %d (local_rank: %d)\\n  exitcode  : %d (pid: 1)" % (rank, rank, code))
    sys.exit(1)
sys.exit(how == "wrong")
"""


@pytest.fixture
def interpreter(tmp_path):
    path = tmp_path / "python"
    path.write_text(AGENT.format(python=sys.executable))
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def job(tmp_path):
    # A name for each test: a launcher of the last one may still look for processes to end.
    made = Job(str(tmp_path / "work"), f"20260101T000000Z-{tmp_path.name}", 1)
    made.create()
    yield made
    assert processes_of(made) == []


@pytest.fixture
def master():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def plan(interpreter, master):
    def make(how, **changes):
        settings = {
            "python": interpreter,
            "node": 1,
            "nodes": 2,
            "ranks_per_node": 2,
            "address": "127.0.0.1",
            "interface": "lo",
            "master": "127.0.0.1",
            "port": master,
            "host_name": "n2",
            "timeout_s": 60.0,
            "arguments": [how],
            "grace_s": 0.5,
        }
        return ep_ranks.Plan(**{**settings, **changes})

    return make


def test_a_good_run(plan, job):
    outcome = ep_ranks.supervise(plan("good"), job)
    assert (outcome["state"], outcome["failures"]) == ("passed", [])
    assert [item["rank"] for item in outcome["ranks"]] == [2, 3]
    assert {item["run_id"] for item in outcome["ranks"]} == {job.run_id}


def test_a_failed_rank_is_named_without_those_that_torchrun_ended(plan, job):
    outcome = ep_ranks.supervise(plan("fail"), job)
    assert (outcome["state"], outcome["why"]) == ("failed", "torchrun ended with 1")
    path = job.path("logs/rank-3.log")
    assert outcome["failures"] == [
        {"rank": 3, "exit_code": -9, "path": path, "log": ["line of rank 3"]}
    ]
    assert Path(path).read_text() == "line of rank 3\n"


def test_a_rank_with_wrong_results_is_named(plan, job):
    outcome = ep_ranks.supervise(plan("wrong"), job)
    assert [item["rank"] for item in outcome["failures"]] == [3]


def test_a_broken_environment_shows_the_launchers_own_words(plan, job):
    outcome = ep_ranks.supervise(plan("broken"), job)
    assert outcome["failures"] == []
    assert "No module named 'torch'" in outcome["log"][-1]


def test_a_hang_ends_at_the_time_limit_with_everybodys_last_words(plan, job):
    began = time.monotonic()
    outcome = ep_ranks.supervise(plan("hang", timeout_s=1.5), job)
    assert time.monotonic() - began < 20
    assert (outcome["state"], outcome["why"]) == ("timeout", "the ranks did not end within 1.5 s")
    assert outcome["log"] == ["rank 2: line of rank 2", "rank 3: line of rank 3"]


def test_ranks_that_outlive_torchrun_are_ended(plan, job):
    outcome = ep_ranks.supervise(plan("orphan"), job)
    assert outcome["why"] == "torchrun ended with -9"
    assert processes_of(job) == []


def test_a_run_that_nobody_asks_for_ends(plan, job):
    outcome = ep_ranks.supervise(plan("hang", silence_s=1.0), job)
    assert outcome["state"] == "abandoned"


def test_a_first_host_that_does_not_answer_is_named(plan, job):
    outcome = ep_ranks.supervise(plan("good", port=1, meeting_s=0.3), job)
    assert outcome["state"] == "unmet"
    assert "127.0.0.1:1 (the first host) did not answer within 0.3 s" in outcome["why"]


def test_waiting_for_the_first_host_can_be_ended(plan, job):
    job.ask_to_stop("enough")
    outcome = ep_ranks.supervise(plan("good", port=1, meeting_s=60.0), job)
    assert (outcome["state"], outcome["why"]) == ("stopped", "enough")


def test_the_ranks_get_the_interface_and_our_settings(plan, job, monkeypatch):
    monkeypatch.setenv("RANK", "7")
    made = plan("good", environment={"NCCL_SOCKET_IFNAME": "ib0", "NVSHMEM_DEBUG": "INFO"})
    variables = made.variables(job)
    assert variables["GLOO_SOCKET_IFNAME"] == "lo"
    assert (variables["NCCL_SOCKET_IFNAME"], variables["NVSHMEM_DEBUG"]) == ("ib0", "INFO")
    assert "RANK" not in variables
    assert variables[RUN_VARIABLE] == job.mark


def test_ranks_are_fixed_by_the_nodes_number(plan, job):
    command = plan("good").command(job)
    at = command.index("--node-rank")
    assert command[at : at + 4] == ["--node-rank", "1", "--nproc-per-node", "2"]


class Launcher:
    """A launcher in a process of its own, as the module is."""

    def __init__(self, plan, job):
        self.pid = os.fork()
        if self.pid == 0:
            job.create()
            job.finish(ep_ranks.supervise(plan, job))
            os._exit(0)
        # Reaped at once, since a zombie still has its identifier.
        threading.Thread(target=os.waitpid, args=(self.pid, 0), daemon=True).start()
        deadline = time.monotonic() + 20
        while len(processes_of(job)) < 3:  # torchrun and two ranks
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_run_can_be_ended_from_outside(plan, job):
    Launcher(plan("hang"), job)
    assert end_job(job, "the play ended the run", 10.0)
    assert (job.result()["state"], job.result()["why"]) == ("stopped", "the play ended the run")
    assert processes_of(job) == []


def test_a_run_whose_launcher_was_killed_can_be_ended(plan, job):
    launcher = Launcher(plan("hang"), job)
    os.kill(launcher.pid, signal.SIGKILL)
    assert end_job(job, "clean up", 0.5)
    assert processes_of(job) == []
    assert not end_job(job, "clean up", 0.5)


def test_processes_of_others_are_left_alone(plan, job, tmp_path):
    other = Job(str(tmp_path / "work"), "20260101T000000Z-other", 1)
    other.create()
    Launcher(plan("hang"), job)
    end_job(other, "clean up", 0.5)
    assert len(processes_of(job)) == 3
    end_job(job, "clean up", 0.5)


def test_a_reused_identifier_is_not_taken_for_ours(job):
    started = {"run_id": job.run_id, "agent": [os.getpid(), 1], "launcher": [os.getpid(), 1]}
    Path(job.path("job.json")).write_text(json.dumps(started))
    assert not end_job(job, "clean up", 0.1)


def test_runs_are_found_and_removed(tmp_path, job):
    workdir = str(tmp_path / "work")
    Job(workdir, "20250101T000000Z-old", 0).create()
    Job(workdir, "20250101T000000Z-old", 3).create()
    assert other_runs(workdir, job.run_id) == ["20250101T000000Z-old"]
    assert nodes_of(workdir, "20250101T000000Z-old") == [0, 3]
    remove_run(workdir, "20250101T000000Z-old")
    assert other_runs(workdir, job.run_id) == []


# Stands for srun and mpirun: starts nothing, and speaks for the ranks of all hosts.
STARTER = """\
#!{python}
import json, os, pathlib, sys
argv = sys.argv
report = {{"ranks": 4, "run_id": argv[argv.index("--run-id") + 1], "correctness": "passed"}}
if os.environ["HOW"] == "good":
    pathlib.Path(argv[argv.index("--output") + 1]).write_text(json.dumps(report))
    sys.exit(0)
print("0: line of rank 0")
print("3: last words of rank 3", flush=True)
print("srun: error: nodeb: task 3: Exited with exit code 7", flush=True)
print("srun: error: nodea: tasks 0-1: Terminated", flush=True)
sys.exit(7)
"""


@pytest.fixture
def starter(tmp_path, plan):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "srun").write_text(STARTER.format(python=sys.executable))
    (folder / "srun").chmod(0o755)

    def make(how):
        return plan(
            "",
            node=0,
            launcher="srun",
            launch_nodes=["nodea", "nodeb"],
            host_names=["n1=nodea", "n2=nodeb.example"],
            environment={"HOW": how, "PATH": str(folder)},
        )

    return make


def test_one_launcher_speaks_for_all_ranks(starter, job):
    outcome = ep_ranks.supervise(starter("good"), job)
    assert (outcome["state"], outcome["failures"]) == ("passed", [])
    assert [item["rank"] for item in outcome["ranks"]] == [0, 1, 2, 3]
    assert {(item["run_id"], item["status"]) for item in outcome["ranks"]} == {
        (job.run_id, "passed")
    }
    assert Path(job.path("hostfile")).read_text() == "nodea\nnodea\nnodeb\nnodeb\n"


def test_and_names_the_one_that_failed_with_its_own_lines(starter, job):
    outcome = ep_ranks.supervise(starter("bad"), job)
    assert outcome["why"] == "srun ended with 7"
    (failure,) = outcome["failures"]
    assert (failure["rank"], failure["exit_code"]) == (3, 7)
    assert failure["log"] == ["last words of rank 3"]
    assert Path(failure["path"]).read_text() == "last words of rank 3\n"


def test_ranks_of_all_hosts_get_where_to_meet_and_what_hosts_are_called(starter, job):
    variables = starter("good").variables(job)
    assert variables["MASTER_ADDR"] == "127.0.0.1"
    assert variables["EP_BENCH_HOSTS"] == "n1=nodea,n2=nodeb.example"
    assert "EP_BENCH_HOST" not in variables


def test_a_launcher_that_is_not_there_is_named(plan, job):
    made = plan("", node=0, launcher="srun", environment={"PATH": "/nowhere"})
    with pytest.raises(OSError, match="srun") as error:
        ep_ranks.supervise(made, job)
    assert ep_ranks.failure_to_start(made, error.value)["why"].startswith("srun could not be")
