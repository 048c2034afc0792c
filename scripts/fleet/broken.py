"""What breaks in a round, and how it is made whole again: on a test host, or the controller."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import hosts

FILLER = "var/epfleet-chaos-filler"
_REBOOT_S = 60.0


@dataclass
class Round:
    """One drawn round: the fault, the host it strikes, and seconds after the rollout's start."""

    number: int
    fault: str
    victim: hosts.Host
    after_s: float


def _inside(host: hosts.Host, *command: str) -> None:
    """Run a command in the namespaces of the host's init, which needs no network."""
    enter = ["nsenter", "--target", hosts.leader(Path(host.directory)), "--all", "--"]
    subprocess.run([*enter, *command], check=True, stdin=subprocess.DEVNULL, capture_output=True)


def _link(host: hosts.Host, state: str) -> None:
    """Set the host's link, which goes and comes with the host's reboots."""
    name = hosts.port(host.name)
    deadline = time.monotonic() + _REBOOT_S
    while not Path(f"/sys/class/net/{name}").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    subprocess.run(["ip", "link", "set", name, state], check=True)


def _cut_network(host: hosts.Host, _rollout: subprocess.Popen[str]) -> None:
    _link(host, "down")


def _kill_sshd(host: hosts.Host, _rollout: subprocess.Popen[str]) -> None:
    _inside(host, "systemctl", "mask", "--runtime", "--now", "ssh")
    with contextlib.suppress(subprocess.CalledProcessError):  # no session was open
        _inside(host, "pkill", "--signal", "KILL", "sshd")


def _fill_disk(host: hosts.Host, _rollout: subprocess.Popen[str]) -> None:
    """Leave nothing free on the host's own disk."""
    with (Path(host.directory) / "root" / FILLER).open("wb") as filler:
        with contextlib.suppress(OSError):
            while True:
                os.write(filler.fileno(), bytes(1 << 20))
        with contextlib.suppress(OSError):
            while True:
                os.write(filler.fileno(), bytes(1 << 12))


def _reboot(host: hosts.Host, _rollout: subprocess.Popen[str]) -> None:
    _inside(host, "systemctl", "reboot", "--force")


def _kill_controller(_host: hosts.Host, rollout: subprocess.Popen[str]) -> None:
    os.killpg(rollout.pid, signal.SIGKILL)


FAULTS: dict[str, Callable[[hosts.Host, subprocess.Popen[str]], None]] = {
    "network cut": _cut_network,
    "sshd killed": _kill_sshd,
    "disk full": _fill_disk,
    "host rebooted": _reboot,
    "controller killed": _kill_controller,
}


def heal(host: hosts.Host) -> None:
    """Undo whatever was done to the host, and wait until it answers."""
    _link(host, "up")
    (Path(host.directory) / "root" / FILLER).unlink(missing_ok=True)
    with contextlib.suppress(subprocess.CalledProcessError, IndexError, OSError):
        _inside(host, "systemctl", "unmask", "--runtime", "ssh")
        _inside(host, "systemctl", "start", "ssh")
    hosts.wait([host])
