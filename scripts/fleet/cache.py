"""The two things kept between runs: the hosts' system tree and the wheels they install from."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from paths import REPOSITORY, cache_directory, locked

SUITE = "bookworm"
HOST_PYTHON = (3, 11)  # what SUITE ships: the wheels are fetched for it
# A system that can be rolled out to: a kernel of its own to build an initramfs for, a compiler and
# Python's headers for the wheel, and sudo, since the roles become root from an ordinary account.
PACKAGES = (
    "ca-certificates",
    "dbus",
    "g++",
    "initramfs-tools",
    "iproute2",
    "kmod",
    "linux-image-cloud-amd64",
    "openssh-server",
    "python3",
    "python3-dev",
    "python3-venv",
    "sudo",
    "systemd",
    "systemd-sysv",
    "udev",
    "zstd",
)
USER = "deploy"
# What the roles ask for beside the requirement files: NVSHMEM's wheel and pip's own tools.
EXTRA_WHEELS = ("nvidia-nvshmem-cu13==3.4.5", "pip", "setuptools", "wheel")
REQUIREMENTS = ("requirements/runtime.txt", "requirements/build.txt")

# Run inside the new tree by mmdebstrap. Host keys are removed so that each host makes its own.
CUSTOMIZE = f"""
set -eu
useradd --create-home --shell /bin/bash {USER}
printf '{USER} ALL=(ALL) NOPASSWD:ALL\\n' > /etc/sudoers.d/{USER}
chmod 0440 /etc/sudoers.d/{USER}
rm -f /etc/ssh/ssh_host_* /etc/machine-id
touch /etc/machine-id
mkdir -p /var/log/journal /srv/wheels
systemctl enable systemd-networkd ssh
systemctl mask systemd-networkd-wait-online apt-daily.timer apt-daily-upgrade.timer
"""


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _keep_only(newest: Path) -> None:
    """Remove the older versions beside `newest`: each is over a gigabyte and none is used again."""
    for other in newest.parent.iterdir():
        if other != newest and other.is_dir():
            shutil.rmtree(other)


def template() -> Path:
    """Return the hosts' system tree, made with mmdebstrap on the first call (about a minute)."""
    parent = cache_directory() / "template"
    tree = parent / _digest(SUITE, CUSTOMIZE, *PACKAGES)
    with locked(cache_directory() / "template.lock"):
        if tree.is_dir():
            return tree
        print(f"fleet: making the hosts' system tree in {tree}", flush=True)
        parent.mkdir(parents=True, exist_ok=True)
        unfinished = parent / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        subprocess.run(
            [
                "mmdebstrap",
                "--quiet",
                "--mode=root",
                "--variant=minbase",
                f"--include={','.join(PACKAGES)}",
                f'--customize-hook=chroot "$1" sh -c {_quoted(CUSTOMIZE)}',
                SUITE,
                str(unfinished),
            ],
            check=True,
            stdin=subprocess.DEVNULL,
        )
        unfinished.rename(tree)
        _keep_only(tree)
    return tree


def _quoted(script: str) -> str:
    return "'" + script.replace("'", "'\\''") + "'"


def wheels() -> Path:
    """Return the folder of every wheel the roles ask pip for, for the hosts' Python."""
    lists = [REPOSITORY / name for name in REQUIREMENTS]
    parent = cache_directory() / "wheels-for-hosts"
    folder = parent / _digest(*(path.read_text() for path in lists), *EXTRA_WHEELS)
    with locked(cache_directory() / "wheels.lock"):
        if folder.is_dir():
            return folder
        print(f"fleet: downloading the hosts' wheels to {folder}", flush=True)
        parent.mkdir(parents=True, exist_ok=True)
        unfinished = parent / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(unfinished)]
        if sys.version_info[:2] != HOST_PYTHON:
            command += ["--only-binary=:all:", "--python-version", ".".join(map(str, HOST_PYTHON))]
            for platform in (
                "manylinux_2_28_x86_64",
                "manylinux_2_17_x86_64",
                "manylinux2014_x86_64",
            ):
                command += ["--platform", platform]
        for path in lists:
            command += ["--requirement", str(path)]
        subprocess.run([*command, *EXTRA_WHEELS], check=True, stdin=subprocess.DEVNULL)
        unfinished.rename(folder)
        _keep_only(folder)
    return folder
