"""Three hosts that are this machine, and real plays of benchmark.yml over them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
# A play of this machine's three hosts takes half a minute alone, and many times that beside others.
PLAY_S = 900
# Without a question for so long the launchers end three hosts' ranks; with what that takes.
SILENCE_S = 90 + 2 * 3 + 120

_PLAYBOOK = "epfleet.expert_parallel.benchmark"

# Gone at exit with the object.
_FOLDER = tempfile.TemporaryDirectory(prefix="epfleet-collections-")
_NAMESPACE = Path(_FOLDER.name) / "ansible_collections" / "epfleet"
_NAMESPACE.mkdir(parents=True)
(_NAMESPACE / "expert_parallel").symlink_to(CHECKOUT, target_is_directory=True)


def free_port() -> int:
    """A TCP port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Fleet:
    """Hosts n1, n2 and n3 of one rank each. ``values`` are for all, ``own`` for one of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Every process of the ranks has it in its environment, whoever started it.
        self.mark = f"EPFLEET_TEST={uuid.uuid4().hex}"
        self.own: dict[str, dict[str, object]] = {"n1": {}, "n2": {}, "n3": {}}
        self.output = folder / "out"
        # Once it exists, hosts of connection `losable` can't be reached.
        self.lost = folder / "lost"
        self.values: dict[str, object] = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "ansible_remote_tmp": str(folder / "tmp"),
            "ansible_async_dir": f"{folder}/async-{{{{ inventory_hostname }}}}",
            "epfleet_become": False,
            "ep_benchmark_venv": sys.prefix,
            "ep_benchmark_ranks_per_host": 1,
            "ep_benchmark_num_tokens": 12,
            "ep_benchmark_hidden": 256,
            "ep_benchmark_num_experts": 12,
            "ep_benchmark_num_topk": 3,
            "ep_benchmark_iters": 8,
            "ep_benchmark_warmup": 1,
            "ep_benchmark_backend": "reference",
            "ep_benchmark_interface": "lo",
            "ep_benchmark_port": free_port(),
            "ep_benchmark_workdir": f"{folder}/work-{{{{ inventory_hostname }}}}",
            "ep_benchmark_output_dir": str(self.output),
            "ep_benchmark_environment": dict([self.mark.split("=")]),
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a play; its output goes to ``play.log``."""
        inventory = self.folder / "inventory.json"
        inventory.write_text(json.dumps({"ep_fleet": {"hosts": self.own, "vars": self.values}}))
        environment = {
            **os.environ,
            "PATH": f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}",
            "ANSIBLE_COLLECTIONS_PATH": _FOLDER.name,
            "ANSIBLE_HOME": str(self.folder / "ansible"),
            "ANSIBLE_CONNECTION_PLUGINS": str(CHECKOUT / "tests/benchmark/connection"),
            "EPFLEET_TEST_LOST": str(self.lost),
            "ANSIBLE_INJECT_FACT_VARS": "false",
            "ANSIBLE_NOCOLOR": "1",
        }
        with (self.folder / "play.log").open("w") as log:
            return subprocess.Popen(
                ["ansible-playbook", "-i", str(inventory), *arguments, _PLAYBOOK],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def play(self, *arguments: str) -> tuple[int, str]:
        """Make a play; its exit status and what it printed, in single spaces."""
        return self.wait(self.start(*arguments))

    def wait(self, play: subprocess.Popen[str]) -> tuple[int, str]:
        """Wait for the end of a play that was started."""
        try:
            code = play.wait(PLAY_S)
        finally:
            if play.poll() is None:
                os.killpg(play.pid, signal.SIGKILL)
                play.wait()
        return code, self.said()

    def said(self) -> str:
        """What the play has printed so far, in single spaces."""
        text = (self.folder / "play.log").read_text(errors="replace")
        return " ".join(text.replace("\\n", " ").replace('\\"', '"').split())

    def processes(self) -> dict[int, dict[str, str]]:
        """The processes of the run by identifier, each with its environment."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                if self.mark in words and state not in "ZX":
                    pairs = (word.partition("=") for word in words)
                    found[int(folder.name)] = {name: value for name, _, value in pairs}
        return found

    def rank(self, number: int, play: subprocess.Popen[str], once: str = "timing") -> int:
        """The process of a rank, once the run says that it is at ``once``."""
        deadline = time.monotonic() + PLAY_S
        while play.poll() is None and time.monotonic() < deadline:
            progress = [
                path.read_text() for path in self.folder.glob("work-n1/run-*/node-0/progress")
            ]
            if any(text.startswith(once) for text in progress):
                for pid, variables in self.processes().items():
                    own = variables.get("RANK") or variables.get("OMPI_COMM_WORLD_RANK")
                    if own == str(number) and _is_rank(pid):
                        return pid
            time.sleep(0.2)
        raise AssertionError(f"rank {number} was never there:\n{self.said()[-3000:]}")

    def wait_until_gone(self, seconds: float) -> None:
        """Wait until no process of the run is left; fails when one is after ``seconds``."""
        deadline = time.monotonic() + seconds
        while self.processes() and time.monotonic() < deadline:
            time.sleep(1)
        assert self.processes() == {}

    def end(self) -> None:
        """End what is left, which after a test that passed is nothing."""
        for pid in self.processes():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _is_rank(pid: int) -> bool:
    """Whether a process is a rank itself and no helper that it started."""
    with suppress(OSError):
        return b"ep_runtime" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


@pytest.fixture
def fleet(tmp_path):
    made = Fleet(tmp_path)
    yield made
    made.end()


@pytest.fixture
def lasting(fleet):
    """A run that goes on until somebody ends it."""
    fleet.values.update(ep_benchmark_iters=200_000)
    return fleet
