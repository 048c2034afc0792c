"""Who has the driver open, and loading it anew only when nobody has."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import gpu_users, reload
from trees import write


def process(root: Path, pid: int, command: str, *targets: str) -> None:
    folder = root / "proc" / str(pid) / "fd"
    folder.mkdir(parents=True)
    (folder.parent / "comm").write_text(command + "\n")
    for number, target in enumerate(targets):
        (folder / str(number)).symlink_to(target)


def driver(root: Path, *modules: str) -> None:
    for name in modules:
        (root / "sys/module" / name).mkdir(parents=True)


class Host:
    """Runs modprobe and systemctl on a fixture tree; ``busy`` modules do not unload."""

    def __init__(self, root: Path, active=(), busy=()):
        self.root, self.active, self.busy = root, list(active), busy
        self.commands: list[str] = []

    def __call__(self, command):
        self.commands.append(" ".join(command))
        if command[:2] == ["systemctl", "is-active"]:
            return (0 if command[-1] in self.active else 3), "", ""
        folder = self.root / "sys/module" / command[-1]
        if command[:2] == ["modprobe", "-r"]:
            if command[-1] in self.busy:
                return 1, "", f"modprobe: FATAL: Module {command[-1]} is in use."
            folder.rmdir()
        elif command[0] == "modprobe":
            folder.mkdir()
        return 0, "", ""

    def changing(self):
        return [command for command in self.commands if "is-active" not in command]


def test_only_the_drivers_devices_count(tmp_path):
    process(tmp_path, 10, "python3", "/dev/nvidia0", "/dev/nvidiactl", "/dev/null")
    process(tmp_path, 11, "bash", "/dev/null", "/tmp/nvidia0", "/dev/nvidia0-not")
    process(tmp_path, 12, "nvidia-persiste", "/dev/nvidia0")
    users = gpu_users.find(write(tmp_path, {}))
    assert [user["pid"] for user in users] == [10, 12]
    assert users[0]["devices"] == ["/dev/nvidia0", "/dev/nvidiactl"]
    assert [gpu_users.is_service(user) for user in users] == [False, True]


def test_modules_and_services_go_in_order_and_come_back_in_the_opposite_one(tmp_path):
    driver(tmp_path, "nvidia", "nvidia_uvm", "nvidia_peermem")
    host = Host(tmp_path, ["nvidia-persistenced.service", "nvidia-fabricmanager.service"])
    assert reload.reload(write(tmp_path, {}), host) == ["nvidia", "nvidia_uvm", "nvidia_peermem"]
    assert host.changing() == [
        "systemctl stop nvidia-fabricmanager.service",
        "systemctl stop nvidia-persistenced.service",
        "modprobe -r nvidia_peermem",
        "modprobe -r nvidia_uvm",
        "modprobe -r nvidia",
        "modprobe nvidia",
        "modprobe nvidia_uvm",
        "modprobe nvidia_peermem",
        "systemctl start nvidia-persistenced.service",
        "systemctl start nvidia-fabricmanager.service",
    ]


def test_a_process_on_the_gpus_stops_it_before_anything_is_stopped(tmp_path):
    driver(tmp_path, "nvidia")
    process(tmp_path, 10, "python3", "/dev/nvidia0")
    host = Host(tmp_path, ["nvidia-persistenced.service"])
    with pytest.raises(reload.ReloadError, match=r"python3 \(10\)"):
        reload.reload(write(tmp_path, {}), host)
    assert host.commands == []


def test_a_module_in_use_leaves_the_host_as_it_was(tmp_path):
    driver(tmp_path, "nvidia", "nvidia_uvm", "nvidia_modeset")
    host = Host(tmp_path, ["nvidia-persistenced.service"], busy=["nvidia"])
    with pytest.raises(reload.ReloadError, match="in use"):
        reload.reload(write(tmp_path, {}), host)
    assert sorted(path.name for path in (tmp_path / "sys/module").iterdir()) == [
        "nvidia",
        "nvidia_modeset",
        "nvidia_uvm",
    ]
    assert host.commands[-1] == "systemctl start nvidia-persistenced.service"


def test_a_node_with_an_old_major_is_named(tmp_path):
    driver(tmp_path, "nvidia")
    tree = write(tmp_path, {"dev/gdrdrv": "", "proc/devices": "Character devices:\n234 gdrdrv\n"})
    with pytest.raises(reload.ReloadError, match="/dev/gdrdrv still has"):
        reload.reload(tree, Host(tmp_path))
