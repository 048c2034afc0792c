"""Plays that go well, and those that are refused before anything is started."""

from __future__ import annotations

import json
import sys

import pytest

# Stands for Slurm's srun on one machine: the ranks of all hosts, as `srun --label` starts them.
SRUN = """\
#!{python}
import os, subprocess, sys, threading
hosts = open(os.environ["SLURM_HOSTFILE"]).read().split()
count = next(int(word.split("=")[1]) for word in sys.argv if word.startswith("--ntasks="))
assert len(hosts) == count and "--distribution=arbitrary" in sys.argv
program = sys.argv[next(i for i, word in enumerate(sys.argv) if i and not word.startswith("--")) :]
lock, ranks = threading.Lock(), []
def pump(rank, stream):
    for line in stream:
        with lock:
            sys.stdout.write("%d: %s" % (rank, line))
for rank in range(count):
    variables = dict(
        os.environ,
        SLURM_PROCID=str(rank), SLURM_NTASKS=str(count), SLURM_LOCALID="0",
    )
    ranks.append(subprocess.Popen(
        program, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
pumps = [threading.Thread(target=pump, args=(n, p.stdout)) for n, p in enumerate(ranks)]
[each.start() for each in pumps]
[each.join() for each in pumps]
sys.exit(max(abs(each.wait()) for each in ranks))
"""


def report(folder):
    return json.loads((folder / "report.json").read_text())


def test_repeated_over_a_part_of_the_fleet(fleet):
    fleet.values["ep_benchmark_sweep"] = ["num-tokens=8,12"]
    code, said = fleet.play("--limit=n1,n2", "-e", "ep_benchmark_runs=2")
    assert code == 0, said[-3000:]
    for number in (1, 2):
        folder = fleet.output / f"run-00{number}"
        kept = report(folder)
        assert [host["name"] for host in kept["hosts"]] == ["n1", "n2"]
        assert [point["num_tokens"] for point in kept["sweep"]] == [8, 12]
        assert {path.name for path in folder.iterdir()} == {
            *("report.json", "report.html", "report.md", "junit.xml", "report.prom")
        }
        assert f"Run {number} of 2: {folder}/report.html" in said
    assert report(fleet.output / "run-001")["run_id"] != kept["run_id"]
    assert " hosts still run (n1, n2)" in said  # the progress line
    assert all(changed == "changed=0" for changed in said.split() if changed[:8] == "changed=")
    assert fleet.processes() == {}
    assert not list(fleet.folder.glob("work-*/run-*"))


def test_a_baseline_is_compared_beyond_the_noise(fleet):
    """The same run again is no regression; one that was a tenth as long is."""
    code, said = fleet.play()
    assert code == 0, said[-3000:]
    kept = fleet.folder / "kept.json"
    fast = report(fleet.output)
    for entry in fast["per_rank"]:
        for name, values in entry["samples"].items():
            entry["samples"][name] = [value / 10 for value in values]
    kept.write_text(json.dumps(fast))
    code, said = fleet.play("-e", f"ep_benchmark_baseline={kept}")
    assert code == 2, said[-3000:]
    assert "The median of dispatch is " in said
    assert "times that of ep_benchmark_baseline" in said
    assert report(fleet.output)["baseline"]["dispatch"]["verdict"] == "slower"


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_another_launcher(fleet, launcher):
    fleet.values["ep_benchmark_launcher"] = launcher
    if launcher == "srun":
        folder = fleet.folder / "bin"
        folder.mkdir()
        (folder / "srun").write_text(SRUN.format(python=sys.executable))
        (folder / "srun").chmod(0o755)
        fleet.values["ep_benchmark_environment"]["PATH"] = f"{folder}:/usr/bin:/bin"
    code, said = fleet.play()
    assert code == 0, said[-3000:]
    kept = report(fleet.output)
    assert kept["correctness"] == "passed"
    assert [(host["name"], host["ranks"]) for host in kept["hosts"]] == [
        *(("n1", [0]), ("n2", [1]), ("n3", [2]))
    ]
    assert fleet.processes() == {}


def test_a_launcher_that_is_not_there(fleet):
    fleet.values["ep_benchmark_launcher"] = "srun"
    fleet.values["ep_benchmark_environment"]["PATH"] = "/nowhere"
    code, said = fleet.play()
    assert code == 2
    assert "ep_benchmark_launcher is srun, which is not on the PATH of this host" in said
    assert "Start the ranks" not in said


def test_hosts_with_different_numbers_of_ranks(fleet):
    """Refused, unless the rest is to be masked; then each runs what the smallest has."""
    fleet.own["n2"]["ep_benchmark_ranks_per_host"] = 2
    code, said = fleet.play()
    assert code == 2
    assert "all hosts need the same number of ranks, but here are 1 on n1, n3; 2 on n2" in said
    code, said = fleet.play("--check", "-e", "ep_benchmark_uneven=mask")
    assert code == 0, said[-3000:]
    assert "Would run 1 ranks on each of 3 hosts by torchrun" in said


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (
            "ep_benchmark_launcher=ssh",
            "value of ep_benchmark_launcher must be one of: torchrun, srun",
        ),
        ("ep_benchmark_timeout=soon", "ep_benchmark_timeout"),
        ("ep_benchmark_runs=0", "ep_benchmark_runs is 0; it must be greater than zero."),
        ("ep_benchmark_baseline=/nowhere/kept.json", "the controller has no such file"),
    ],
)
def test_extra_variables_are_checked(fleet, value, sentence):
    code, said = fleet.play("-e", value)
    assert code == 2
    assert sentence in said
    assert "Start the ranks" not in said
