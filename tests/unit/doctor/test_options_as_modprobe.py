"""What a load would give, on every fixture, compared with the real modprobe on the same tree."""

from __future__ import annotations

import os
import shutil
import subprocess

import elf
import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host import (
    modprobe,
    root,
)
from cases import CASES
from hosts import Tree
from layouts import LAYOUTS

SEARCH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
MODPROBE, DEPMOD = (shutil.which(name, path=SEARCH) for name in ("modprobe", "depmod"))
pytestmark = pytest.mark.skipif(
    MODPROBE is None or DEPMOD is None, reason="Debian package kmod is missing"
)
DIRECTORIES = ("etc/modprobe.d", "run/modprobe.d", "usr/lib/modprobe.d")
CHANGES = {
    f"{case.rule}-{kind}": (case.layout, change)
    for case in CASES
    if case.rule.startswith("EPD1")
    for kind, change in (("fires", case.fires), ("near", case.near))
}
CHANGES |= {layout.name: (layout, lambda tree: None) for layout in LAYOUTS}


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """A module index that knows a module nvidia, for a kernel called 1.0."""
    base = tmp_path_factory.mktemp("modules")
    folder = base / "lib/modules/1.0"
    (folder / "extra").mkdir(parents=True)
    for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
        (folder / name).write_text("")
    (folder / "extra/nvidia.ko").write_bytes(elf.module(name="nvidia", license="GPL"))
    subprocess.run([DEPMOD, "-b", str(base), "1.0"], check=True, capture_output=True)
    return base


def loads(modules, host) -> str:
    """The options on the insmod line that modprobe would run; "" for a rule in its place."""
    command = [MODPROBE, "-d", str(modules), "-S", "1.0", "-n", "-v"]
    for directory in DIRECTORIES:
        (host / directory).mkdir(parents=True, exist_ok=True)
        command += ["-C", str(host / directory)]
    run = subprocess.run([*command, "nvidia"], capture_output=True, text=True, check=True)
    lines = [line for line in run.stdout.splitlines() if line.startswith("insmod")]
    return lines[0].split("nvidia.ko", 1)[1] if lines else ""


@pytest.mark.parametrize("name", CHANGES)
def test_options_as_modprobe_gives_them(tmp_path, modules, name):
    layout, change = CHANGES[name]
    tree = Tree(layout)
    change(tree)
    # modprobe adds the command line of the machine it runs on, so ours leaves the tree's out.
    host = root.HostRoot(str(tree.write(tmp_path)))
    config = modprobe.module_config(modprobe.config_files(host), "nvidia")
    theirs = modprobe.kernel_arguments(loads(modules, tmp_path))
    if any(rule.kind == "install" for rule in config.rules):
        assert theirs == []
    else:
        assert [(item.parameter, item.value) for item in config.assignments] == theirs
        assert config.effective() == {key: value or "" for key, value in theirs}


@pytest.mark.parametrize("name", CHANGES)
def test_lines_as_modprobe_shows_them(tmp_path, name):
    layout, change = CHANGES[name]
    tree = Tree(layout)
    change(tree)
    tree.write(tmp_path)
    command = [MODPROBE, "--showconfig"]
    for directory in DIRECTORIES:
        (tmp_path / directory).mkdir(parents=True, exist_ok=True)
        command += ["--config", str(tmp_path / directory)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    theirs = []
    for line in run.stdout.splitlines():
        words = line.split(None, 2)
        if words[:2] == ["options", "nvidia"]:
            theirs += modprobe.kernel_arguments(words[2])
    host = root.HostRoot(str(tmp_path))
    ours = modprobe.module_config(modprobe.config_files(host), "nvidia").assignments
    assert [(item.parameter, item.value) for item in ours] == theirs
