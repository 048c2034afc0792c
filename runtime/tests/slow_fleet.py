"""The benchmark over four made hosts on this machine, one of them slow in a known way.

Each host is a network namespace with two ranks; all hang on one bridge in a namespace of its own.
Root is needed, for namespaces, traffic control and CPU quotas; what can't be made is said, never
passed over. ``python slow_fleet.py --runs 20`` is the proof that no verdict is wrong.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import torch
from ep_runtime.bench import cli
from slow_cases import CASES, SLOW_LINK, STARVED, TBF, complaint, slow_down

HOSTS, RANKS_PER_HOST = 4, 2
RANKS = HOSTS * RANKS_PER_HOST
SLOW_HOST = 2
LIMIT_S = 240.0
PREFIX = f"ep{os.getpid()}"

_STARVED_US, _PERIOD_US = 4000, 20000
_CPU_GROUPS = Path("/sys/fs/cgroup/cpu")
_ARGUMENTS = (
    *("low-latency", "--num-tokens=24", "--hidden=1024", "--num-experts=16", "--num-topk=4"),
    *("--iters=20", "--warmup=2", "--backend=reference", "--timeout=120"),
)


def missing() -> str:
    """Say what this machine lacks for the cases; empty when nothing."""
    lacking = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if os.geteuid() != 0:
        lacking.append("root")
    if not (_CPU_GROUPS / "cpu.cfs_quota_us").parent.is_dir():
        lacking.append("the cpu controller in /sys/fs/cgroup/cpu")
    return ", ".join(lacking)


def _do(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True, text=True)


class Network:
    """Namespaces of the hosts and of their switch, gone again at the end."""

    def __init__(self) -> None:
        self.hosts = [f"{PREFIX}-host{number}" for number in range(HOSTS)]
        self.switch = f"{PREFIX}-switch"

    def __enter__(self) -> Network:
        for name in (self.switch, *self.hosts):
            _do(f"ip netns add {name}")
            _do(f"ip -n {name} link set lo up")
        _do(f"ip -n {self.switch} link add bridge type bridge")
        _do(f"ip -n {self.switch} link set bridge up")
        for number, name in enumerate(self.hosts):
            _do(f"ip -n {name} link add eth0 type veth peer name port{number} netns {self.switch}")
            _do(f"ip -n {name} addr add 10.7.0.{number + 1}/24 dev eth0")
            _do(f"ip -n {name} link set eth0 up")
            _do(f"ip -n {self.switch} link set port{number} master bridge up")
        return self

    def __exit__(self, *_: object) -> None:
        for name in (*self.hosts, self.switch):
            with suppress(subprocess.CalledProcessError):
                _do(f"ip netns del {name}")

    def slow_link(self, host: int) -> None:
        """Limit the rate of what leaves ``host`` and of what comes in."""
        _do(f"tc -n {self.hosts[host]} qdisc replace dev eth0 root {TBF}")
        _do(f"tc -n {self.switch} qdisc replace dev port{host} root {TBF}")

    def fast_link(self, host: int) -> None:
        """Take the limit away again."""
        _do(f"tc -n {self.hosts[host]} qdisc del dev eth0 root")
        _do(f"tc -n {self.switch} qdisc del dev port{host} root")


class Quota:
    """A group of processes that may use a fifth of a CPU."""

    def __init__(self) -> None:
        self.folder = _CPU_GROUPS / PREFIX

    def __enter__(self) -> Quota:
        self.folder.mkdir()
        (self.folder / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
        (self.folder / "cpu.cfs_quota_us").write_text(str(_STARVED_US))
        return self

    def __exit__(self, *_: object) -> None:
        for _attempt in range(50):
            with suppress(OSError):
                self.folder.rmdir()
                return
            time.sleep(0.1)

    def take(self) -> None:
        """Put this process in."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))


def _rank(network: Network, quota: Quota, case: str, rank: int, port: int, folder: Path) -> int:
    """What a forked process does: become a rank of a host and run the benchmark."""
    host = rank // RANKS_PER_HOST
    with Path(f"/run/netns/{network.hosts[host]}").open() as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    with (folder / f"rank-{rank}.log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(RANKS),
        LOCAL_RANK=str(rank % RANKS_PER_HOST),
        MASTER_ADDR="10.7.0.1",
        MASTER_PORT=str(port),
        GLOO_SOCKET_IFNAME="eth0",
        EP_BENCH_HOST=f"host-{host}",
    )
    if case == STARVED and host == SLOW_HOST:
        quota.take()
    if rank == SLOW_HOST * RANKS_PER_HOST:
        slow_down(case)
    return cli.main([*_ARGUMENTS, f"--seed={port}", f"--output={folder / 'report.json'}"])


def run(network: Network, quota: Quota, case: str, port: int, folder: Path) -> dict:
    """Run the benchmark once and return its report."""
    if case == SLOW_LINK:
        network.slow_link(SLOW_HOST)
    children = []
    try:
        for rank in range(RANKS):
            child = os.fork()
            if child == 0:
                status = 99
                try:
                    status = _rank(network, quota, case, rank, port, folder)
                finally:
                    os._exit(status)
            children.append(child)
        deadline = time.monotonic() + LIMIT_S
        left = set(children)
        while left and time.monotonic() < deadline:
            left = {child for child in left if os.waitpid(child, os.WNOHANG)[0] == 0}
            time.sleep(0.05)
        children = list(left)
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        if case == SLOW_LINK:
            network.fast_link(SLOW_HOST)
    report = folder / "report.json"
    if not report.exists():
        logs = "\n".join(path.read_text() for path in sorted(folder.glob("*.log")))
        raise RuntimeError(f"{case}: no report\n{logs[-3000:]}")
    return json.loads(report.read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20, help="of each case (%(default)s)")
    parser.add_argument("--case", action="append", choices=list(CASES), help="(all)")
    arguments = parser.parse_args()
    lacking = missing()
    if lacking:
        print(f"cannot make slow hosts here: {lacking} is missing", file=sys.stderr)
        return 2
    complaints: dict[str, list[str]] = {case: [] for case in arguments.case or CASES}
    with ExitStack() as stack:
        network, quota = stack.enter_context(Network()), stack.enter_context(Quota())
        # In turn, so that a record that is cut short has as many of each.
        for count in range(arguments.runs):
            for number, case in enumerate(complaints):
                with tempfile.TemporaryDirectory() as folder:
                    port = 20000 + 1000 * number + count
                    report = run(network, quota, case, port, Path(folder))
                text = complaint(case, report, f"host-{SLOW_HOST}")
                median = report["dispatch"]["p50_us"]
                told = text or " ".join(item["what"] for item in report["culprits"])
                print(f"{case} {count}: dispatch {median:,.0f} us. {told or 'nobody'}", flush=True)
                complaints[case] += [text] if text else []
    for case, wrong in complaints.items():
        print(f"{case}: {arguments.runs - len(wrong)} of {arguments.runs} right", flush=True)
    return 1 if any(complaints.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
