"""The two things kept between runs: the hosts' system tree and the wheels they install from."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from paths import REPOSITORY, cache_directory, locked

HOST_PYTHON = (3, 11)  # what debian12 ships: the wheels are fetched for it
# A system that can be rolled out to: a kernel of its own to build an initramfs for, a compiler and
# Python's headers for the wheel, and sudo, since the roles become root from an ordinary account.
PACKAGES = (
    "ca-certificates",
    "dbus",
    "g++",
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
# With what a kernel module is built from, for hosts whose driver comes by DKMS.
MODULE_PACKAGES = ("dkms", "linux-headers-cloud-amd64")


@dataclass(frozen=True)
class System:
    """A kind of test host: its Debian suite and what it has beside PACKAGES."""

    suite: str
    packages: tuple[str, ...]
    customize: str = ""


# Leaves the kernel before the newest, with the newest one's packages in /srv/kernel to upgrade to.
HOLD_BACK_KERNEL = """
apt-get -q update
newest=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: linux-image-//p')
older=$(apt-cache search --names-only '^linux-image-6[.]1[.]0-.*-cloud-amd64$' | cut -d ' ' -f 1 |
  sed 's/^linux-image-//' | sort -V | grep -v -F "$newest" | tail -n 1)
mkdir -p /srv/kernel && chmod 0777 /srv/kernel && cd /srv/kernel
apt-get -q download "linux-image-$newest" "linux-headers-$newest" \
  "linux-headers-${newest%-cloud-amd64}-common"
apt-get -q -y --no-install-recommends install "linux-image-$older" "linux-headers-$older"
apt-get -q -y purge linux-image-cloud-amd64 linux-headers-cloud-amd64 "linux-image-$newest" \
  "linux-headers-$newest" "linux-headers-${newest%-cloud-amd64}-common"
apt-get -q clean
"""
# A site that keeps its Python over two releases: the older one's, beside the system's own. The
# package of its venv is only unpacked: it depends on a distutils that the newer release can't have.
OLDER_PYTHON = """
sed 's/trixie/bookworm/' /etc/apt/sources.list > /etc/apt/sources.list.d/bookworm.list
apt-get -q update
apt-get -q -y --no-install-recommends install python3.11 python3.11-dev
cd /tmp
apt-get -q download python3.11-venv
dpkg-deb --extract python3.11-venv_*.deb /
rm python3.11-venv_*.deb
apt-get -q clean
"""
SYSTEMS = {
    "debian12": System("bookworm", ("initramfs-tools",)),
    "debian13": System("trixie", ("initramfs-tools",), OLDER_PYTHON),
    "debian12-dkms": System("bookworm", ("initramfs-tools", *MODULE_PACKAGES), HOLD_BACK_KERNEL),
    "debian13-dkms": System("trixie", ("initramfs-tools", *MODULE_PACKAGES)),
    "debian13-dracut": System("trixie", ("dracut", *MODULE_PACKAGES)),
}
USER = "deploy"
# What the roles ask for beside the requirement files: NVSHMEM's wheel and pip's own tools.
EXTRA_WHEELS = ("nvidia-nvshmem-cu13==3.4.5", "pip", "setuptools", "wheel")
REQUIREMENTS = (
    "requirements/runtime.txt",
    "requirements/torch.txt",
    "runtime/requirements/build.txt",
)

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


def _keep_only(newest: Path, versions: str = "*") -> None:
    """Remove the older `versions` beside `newest`: each is large and none is used again."""
    for other in newest.parent.glob(versions):
        if other != newest and other.is_dir():
            shutil.rmtree(other)


def template(name: str) -> Path:
    """Return the tree of system `name`, made with mmdebstrap on the first call (some minutes)."""
    system = SYSTEMS[name]
    packages = (*PACKAGES, *system.packages)
    customize = CUSTOMIZE + system.customize
    parent = cache_directory() / "template"
    tree = parent / f"{name}-{_digest(system.suite, customize, *packages)}"
    with locked(cache_directory() / f"template-{name}.lock"):
        if tree.is_dir():
            return tree
        print(f"fleet: making the system tree {tree}", flush=True)
        parent.mkdir(parents=True, exist_ok=True)
        unfinished = parent / f"unfinished.{name}"
        shutil.rmtree(unfinished, ignore_errors=True)
        subprocess.run(
            [
                "mmdebstrap",
                "--quiet",
                "--mode=root",
                "--variant=minbase",
                f"--include={','.join(packages)}",
                f'--customize-hook=chroot "$1" sh -c {_quoted(customize)}',
                system.suite,
                str(unfinished),
            ],
            check=True,
            stdin=subprocess.DEVNULL,
        )
        unfinished.rename(tree)
        _keep_only(tree, f"{name}-{'[0-9a-f]' * 12}")
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
        # Apart: a list with hashes asks for hashes of all that is named beside it.
        for wanted in (*(["--requirement", str(path)] for path in lists), EXTRA_WHEELS):
            subprocess.run([*command, *wanted], check=True, stdin=subprocess.DEVNULL)
        unfinished.rename(folder)
        _keep_only(folder)
    return folder
