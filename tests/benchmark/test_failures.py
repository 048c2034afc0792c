"""However a run fails, the play names host and rank in one sentence, and nothing stays behind."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

import pytest
from conftest import PLAY_S, SILENCE_S


def ended(fleet, play, sentence):
    """The play failed with ``sentence``, and left no process; returns what it said."""
    code, said = fleet.wait(play)
    assert code == 2, said[-3000:]
    assert sentence in said, said[-3000:]
    assert fleet.processes() == {}
    return said


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGKILL, "was ended by SIGKILL"), (signal.SIGSEGV, "was ended by SIGSEGV")],
    ids=["killed", "crashed"],
)
def test_a_rank_that_dies(lasting, number, words):
    play = lasting.start()
    os.kill(lasting.rank(1, play), number)
    ended(lasting, play, f"The benchmark failed: rank 1 on n2 {words}.")
    assert "rank-1.log" in {path.name for path in (lasting.output / "logs").iterdir()}


def test_a_rank_that_raises(fleet):
    """Its own last words are told, and its log is brought."""
    fleet.own["n3"]["ep_benchmark_environment"] = {
        **fleet.values["ep_benchmark_environment"],
        "GLOO_SOCKET_IFNAME": "nowhere0",
    }
    said = ended(fleet, fleet.start(), "The benchmark failed: rank 2 on n3 failed with exit code 3")
    assert "nowhere0" in said
    assert "nowhere0" in (fleet.output / "logs" / "rank-2.log").read_text()


def test_a_rank_that_hangs(lasting):
    lasting.values["ep_benchmark_timeout"] = 240
    play = lasting.start()
    began = time.monotonic()
    os.kill(lasting.rank(2, play), signal.SIGSTOP)
    ended(lasting, play, "rank 2 on n3 did not get anywhere and gave no reason (stuck or stopped?)")
    assert time.monotonic() - began < PLAY_S / 2


def test_a_host_that_cannot_be_reached(fleet):
    fleet.own["n2"] = {
        "ansible_connection": "ssh",
        "ansible_host": "127.0.0.1",
        "ansible_port": 1,
    }
    said = ended(fleet, fleet.start(), "fatal: [n2]")
    assert "n2" in said
    assert "Start the ranks" not in said


def test_a_host_that_cannot_reach_the_first_one(fleet):
    """Nobody answers at the port, as behind a firewall: the first torchrun never gets there."""
    python = fleet.folder / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *torch.distributed.run*) exec sleep 900 ;; esac\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    fleet.own["n1"]["ep_benchmark_venv"] = str(python.parents[1])
    fleet.values["ep_benchmark_stage_timeout"] = 30
    said = ended(fleet, fleet.start(), "(the first host) did not answer within 30 s from 127.0.0.1")
    named = [f"The benchmark failed: {host}: " in said for host in ("n2 (rank 1)", "n3 (rank 2)")]
    assert any(named)


def test_a_port_in_use(fleet):
    with socket.create_server(("127.0.0.1", int(fleet.values["ep_benchmark_port"]))):
        said = ended(fleet, fleet.start(), "is in use on this host")
    assert f"ep_benchmark_port ({fleet.values['ep_benchmark_port']})" in said
    assert "fatal: [n1]" in said
    assert "Start the ranks" not in said


def test_a_wrong_interface(fleet):
    fleet.own["n3"]["ep_benchmark_interface"] = "ib7"
    said = ended(fleet, fleet.start(), "ep_benchmark_interface is ib7, which has no IPv4 address")
    assert "fatal: [n3]" in said
    assert "Start the ranks" not in said


def test_ctrl_c(lasting):
    """The launchers end their ranks when the play asks for them no more."""
    play = lasting.start()
    lasting.rank(0, play)
    os.killpg(play.pid, signal.SIGINT)
    lasting.wait(play)
    lasting.wait_until_gone(SILENCE_S)


def test_a_host_that_is_lost_meanwhile(lasting):
    """The others end at once, its own ranks when nobody has asked for them for a while."""
    lasting.own["n2"]["ansible_connection"] = "losable"
    play = lasting.start()
    lasting.rank(1, play)
    lasting.lost.touch()
    code, said = lasting.wait(play)
    assert code != 0
    assert "The benchmark failed: n2 (rank 1) became unreachable: " in said, said[-3000:]
    assert "No route to host" in said
    lasting.wait_until_gone(SILENCE_S)


@pytest.mark.parametrize("number", [0, 2])
def test_a_rank_of_mpirun_that_dies(lasting, number):
    lasting.values["ep_benchmark_launcher"] = "mpirun"
    play = lasting.start()
    os.kill(lasting.rank(number, play), signal.SIGKILL)
    sentence = f"The benchmark failed: rank {number} on n{number + 1} was ended by SIGKILL."
    ended(lasting, play, sentence)
