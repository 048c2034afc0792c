"""Boot and remove the test hosts: systemd-nspawn machines on a bridge, over overlay trees."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import cache
from paths import cache_directory, locked, run_directory, run_identity

REBOOT_STATUS = 133  # systemd-nspawn's exit status when the system inside asked for a reboot
BOOT_TIMEOUT_S = 90.0
SHUTDOWN_TIMEOUT_S = 10.0
SUBNET_PREFIX = "10.213"
TREE_BYTES = 2 << 30  # what a rollout writes on one host, rounded up


@dataclass(frozen=True)
class Host:
    """One test host: its name, its address, and the folder that holds its tree and its logs."""

    name: str
    address: str
    directory: str


@dataclass(frozen=True)
class Fleet:
    """Everything that must be known to reach the fleet or to remove it."""

    bridge: str
    subnet: str
    key: str
    binds: list[str]  # read-only folders for the hosts, SOURCE:TARGET each
    hosts: list[Host]


def state_file() -> Path:
    """Return where the running fleet is described."""
    return run_directory() / "fleet.json"


def load() -> Fleet | None:
    """Return the fleet of this checkout, None when there is none."""
    try:
        raw = json.loads(state_file().read_text())
    except FileNotFoundError:
        return None
    return Fleet(**{**raw, "hosts": [Host(**host) for host in raw["hosts"]]})


def _run(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, check=check, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )


def _free_subnet() -> str:
    """Return the first three octets of a /24 that no interface of this machine uses."""
    taken = _run("ip", "-4", "-o", "address").stdout
    start = int(run_identity(), 16)
    for offset in range(250):
        subnet = f"{SUBNET_PREFIX}.{1 + (start + offset) % 250}"
        if f" {subnet}." not in taken:
            return subnet
    raise RuntimeError(f"no free /24 under {SUBNET_PREFIX}.0.0/16 for the fleet's bridge")


def _make_run_directory(count: int) -> Path:
    """Make the folder of the hosts' trees, in memory where there is plenty.

    A rollout writes and `down` removes some 30,000 files a host, which a disk makes slow.
    """
    directory = run_directory()
    directory.mkdir(parents=True)
    memory = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(memory["MemAvailable"].split()[0]) * 1024
    if available > 3 * count * TREE_BYTES:
        size = f"size={count * TREE_BYTES}"
        _run("mount", "-t", "tmpfs", f"epfleet-{run_identity()}", "-o", size, str(directory))
    return directory


def _prepare_tree(fleet: Fleet, host: Host, template: Path, disk_mib: int) -> None:
    """Mount the host's tree over the template and write what makes it this host.

    With `disk_mib` it has a disk of its own of that size, in memory.
    """
    directory = Path(host.directory)
    # What the host writes; a full disk of its own must not stop its supervisor.
    disk = directory / "disk"
    disk.mkdir(parents=True)
    if disk_mib:
        options = f"size={disk_mib}m,mode=0755"
        _run("mount", "-t", "tmpfs", f"epfleet-disk-{host.name}", "-o", options, str(disk))
    for path in (disk / "upper", disk / "work", directory / "root"):
        path.mkdir()
    options = f"lowerdir={template},upperdir={disk / 'upper'},workdir={disk / 'work'}"
    _run("mount", "-t", "overlay", f"epfleet-{host.name}", "-o", options, str(directory / "root"))
    root = directory / "root"
    (root / "etc/hostname").write_text(host.name + "\n")
    # As Debian's installer leaves it: the host's own name is a loopback address. A rendezvous that
    # trusts the host's name must fail here, as it would on real hosts.
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {host.name}\n")
    (root / "etc/systemd/network/10-fleet.network").write_text(
        "[Match]\nName=host0\n\n"
        f"[Network]\nAddress={host.address}/24\nGateway={fleet.subnet}.1\nLinkLocalAddressing=no\n"
    )
    _run("chroot", str(root), "ssh-keygen", "-A")
    authorized = root / "home" / cache.USER / ".ssh" / "authorized_keys"
    authorized.parent.mkdir(mode=0o700)
    authorized.write_text(Path(fleet.key + ".pub").read_text())
    _run("chroot", str(root), "chown", "-R", f"{cache.USER}:", f"/home/{cache.USER}/.ssh")


def supervise(fleet: Fleet, host: Host) -> int:
    """Run the host until it powers off, again after each reboot; one line a boot in `boots`.

    With a file `stay-down` beside it the host does not come back from a reboot.
    """
    directory = Path(host.directory)
    command = [
        "systemd-nspawn",
        "--quiet",
        "--register=no",
        "--keep-unit",
        "--settings=no",
        "--link-journal=no",
        f"--directory={directory / 'root'}",
        f"--hostname={host.name}",
        f"--machine={host.name}-{run_identity()}",
        f"--network-bridge={fleet.bridge}",
        *(f"--bind-ro={bind}" for bind in fleet.binds),
        "--boot",
    ]
    while True:
        with (directory / "boots").open("a") as boots:
            boots.write(f"{time.time():.3f}\n")
        with (directory / "console.log").open("ab") as console:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=console, stderr=console
            )
            (directory / "nspawn.pid").write_text(str(process.pid))
            status = process.wait()
        if status != REBOOT_STATUS or (directory / "stay-down").exists():
            return status


def _answers(address: str) -> bool:
    try:
        with socket.create_connection((address, 22), timeout=1) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def leader(directory: Path) -> str:
    """Return the process that is init inside the host of this folder."""
    supervisor = (directory / "nspawn.pid").read_text().strip()
    return Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()[0]


def port(name: str) -> str:
    """Return this machine's end of the link of host `name` of this checkout's fleet."""
    return f"vb-{name}-{run_identity()}"


def up(systems: list[str], binds: list[str], disk_mib: int = 0) -> Fleet:
    """Boot one host for each name in `systems`, removing first what an earlier run left.

    `disk_mib` gives each a small disk of its own. `binds` are read-only folders for the hosts,
    `SOURCE:TARGET` each. Raises RuntimeError naming the host that did not answer in time, with the
    end of its console.
    """
    down()
    templates = [cache.template(system) for system in systems]
    directory = _make_run_directory(len(systems))
    with locked(cache_directory() / "subnet.lock"):
        subnet, bridge = _free_subnet(), f"epf-{run_identity()}"
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "address", "add", f"{subnet}.1/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
    key = directory / "id_ed25519"
    _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    names = [f"ep{number}" for number in range(1, len(systems) + 1)]
    hosts = [
        Host(name, f"{subnet}.{10 + number}", str(directory / name))
        for number, name in enumerate(names, start=1)
    ]
    fleet = Fleet(bridge, subnet, str(key), binds, hosts)
    state_file().write_text(json.dumps(asdict(fleet), indent=2) + "\n")
    for host, template in zip(hosts, templates):
        _prepare_tree(fleet, host, template, disk_mib)
        start(host)
    wait(hosts)
    return fleet


def start(host: Host) -> None:
    """Start the host's supervisor, which outlives this process."""
    supervisor = subprocess.Popen(
        [sys.executable, str(Path(__file__).parent), "supervise", host.name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    (Path(host.directory) / "supervisor.pid").write_text(str(supervisor.pid))


def wait(hosts: list[Host]) -> None:
    """Wait until all answer; RuntimeError with the end of the console of one that does not."""
    deadline = time.monotonic() + BOOT_TIMEOUT_S
    for host in hosts:
        while not _answers(host.address):
            if time.monotonic() > deadline:
                console = (Path(host.directory) / "console.log").read_text(errors="replace")
                raise RuntimeError(
                    f"{host.name} did not answer on {host.address} within {BOOT_TIMEOUT_S:.0f} s; "
                    f"the end of its console:\n{console[-2000:]}"
                )
            time.sleep(0.3)


def _owned_pid(pid_file: Path, marker: str) -> int | None:
    """Return the pid of a pid file, None when its process is gone or the pid is now another's."""
    try:
        pid = int(pid_file.read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except (OSError, ValueError):
        return None
    return pid if marker in command else None


def _end(pid_files: dict[Path, str], *signals: signal.Signals) -> None:
    """End the processes of these pid files together, each signal after the one before had time."""
    for number in signals:
        deadline = time.monotonic() + SHUTDOWN_TIMEOUT_S
        for pid_file, marker in pid_files.items():
            pid = _owned_pid(pid_file, marker)
            if pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        while any(_owned_pid(*item) is not None for item in pid_files.items()):
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)


def down() -> None:
    """Remove every trace of this checkout's fleet: processes, mounts, bridge, folders."""
    directory = run_directory()
    folders = [path for path in directory.glob("*") if path.is_dir()]
    _end({folder / "supervisor.pid": "supervise" for folder in folders}, signal.SIGKILL)
    _end({folder / "nspawn.pid": str(folder) for folder in folders}, signal.SIGTERM, signal.SIGKILL)
    for folder in folders:
        _run("umount", "--lazy", str(folder / "root"), check=False)
        if (folder / "disk").is_mount():
            _run("umount", "--lazy", str(folder / "disk"), check=False)
        # The kernel removes a dead host's interface when it gets to it; a new host can't wait.
        _run("ip", "link", "delete", port(folder.name), check=False)
    _run("ip", "link", "delete", f"epf-{run_identity()}", check=False)
    if directory.is_mount():
        _run("umount", "--lazy", str(directory))
    shutil.rmtree(directory, ignore_errors=True)
