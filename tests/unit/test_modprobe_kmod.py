"""Our reading of modprobe.d compared with the real modprobe's, on the same trees."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host import modprobe
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.root import (
    HostRoot,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

PROGRAM = shutil.which("modprobe", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="modprobe (Debian package kmod) is missing")

DIRECTORIES = ("etc/modprobe.d", "run/modprobe.d", "usr/lib/modprobe.d")
_NAMES = st.sampled_from(["a.conf", "b.conf", "nvidia.conf", "zz.conf", "B.conf", ".x.conf", "c"])
_WORDS = st.sampled_from(
    [
        "options",
        "nvidia",
        "nvidia-drm",
        "nvidia_drm",
        "install",
        "remove",
        "blacklist",
        "a=1",
        "a=2",
        'b="x=y"',
        'b="',
        "c-d=1",
        "#",
        "--",
        "x",
        "=",
        "a=",
        '"q=1"',
        "/bin/true",
    ]
)
_BLANKS = st.sampled_from([" ", "  ", "\t", " \t", "\\\n", " \\\n ", "\n", "\n\n", "\\ "])
_CONTENT = st.lists(st.tuples(_WORDS, _BLANKS), max_size=30).map(
    lambda pairs: "".join(word + blank for word, blank in pairs)
)
_TREES = st.dictionaries(st.tuples(st.sampled_from(DIRECTORIES), _NAMES), _CONTENT, max_size=6)


def ask_modprobe(root) -> list[str]:
    """Lines of ``modprobe --showconfig`` about module nvidia, blanks made single."""
    command = [PROGRAM, "--showconfig"]
    for directory in DIRECTORIES:
        command += ["--config", str(root / directory)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return [" ".join(line.split()) for line in run.stdout.splitlines()]


def ours(root) -> list[str]:
    """The same lines as our reader has them; its options are compared by their words."""
    files = [
        item
        for item in modprobe.config_files(HostRoot(str(root)))
        if item.path[1:].rsplit("/", 1)[0] in DIRECTORIES
    ]
    config = modprobe.module_config(files, "nvidia")
    lines = []
    for item in config.assignments:
        lines.append(item.parameter if item.value is None else f"{item.parameter}={item.value}")
    rules = [f"{rule.kind} nvidia {' '.join(rule.text.split())}".strip() for rule in config.rules]
    return [*lines, *sorted(rules)]


def theirs(root) -> list[str]:
    options, rules = [], []
    for line in ask_modprobe(root):
        kind, _, rest = line.partition(" ")
        name, _, text = rest.partition(" ")
        if name != "nvidia":
            continue
        if kind == "options":
            for parameter, value in modprobe.kernel_arguments(text):
                options.append(parameter if value is None else f"{parameter}={value}")
        elif kind in ("install", "remove", "blacklist"):
            rules.append(line if kind != "blacklist" else f"{kind} {name}")
    return [*options, *sorted(rules)]


@given(tree=_TREES)
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_same_lines_as_modprobe(tmp_path, tree):
    root = tmp_path / "root"
    shutil.rmtree(root, ignore_errors=True)
    for directory in DIRECTORIES:
        (root / directory).mkdir(parents=True)
    for (directory, name), content in tree.items():
        (root / directory / name).write_text(content)
    assert ours(root) == theirs(root)


@pytest.fixture
def module_tree(tmp_path):
    """A module index that knows a module nvidia, for a kernel called 1.0."""
    base = tmp_path / "modules/lib/modules/1.0"
    base.mkdir(parents=True)
    (base / "modules.dep").write_text("extra/nvidia.ko:\n")
    (base / "modules.builtin").write_text("")
    (base / "modules.order").write_text("")
    depmod = shutil.which("depmod", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    compiler = shutil.which("gcc") or shutil.which("cc")
    if depmod is None or compiler is None:
        pytest.skip("depmod or a C compiler is missing")
    source = tmp_path / "nvidia.c"
    source.write_text(
        'static const char n[] __attribute__((section(".modinfo"), used)) = "name=nvidia";\n'
        'static const char l[] __attribute__((section(".modinfo"), used)) = "license=GPL";\n'
    )
    (base / "extra").mkdir()
    subprocess.run([compiler, "-c", str(source), "-o", str(base / "extra/nvidia.ko")], check=True)
    subprocess.run([depmod, "-b", str(tmp_path / "modules"), "1.0"], check=True)
    return tmp_path / "modules"


def test_the_line_a_load_would_use(tmp_path, module_tree):
    config = tmp_path / "etc/modprobe.d"
    config.mkdir(parents=True)
    (config / "nvidia.conf").write_text('options nvidia NVreg_RegistryDwords="RMForce=1;" a=1\n')
    (config / "zz-epfleet-nvidia.conf").write_text(
        'options nvidia NVreg_RegistryDwords="PeerMappingOverride=1;"\n'
    )
    command = [PROGRAM, "-d", str(module_tree), "-S", "1.0", "-C", str(config), "-n", "-v"]
    run = subprocess.run([*command, "nvidia"], capture_output=True, text=True, check=True)
    # insmod PATH OPTIONS
    line = next(text for text in run.stdout.splitlines() if text.startswith("insmod"))
    given_to_kernel = modprobe.kernel_arguments(line.split("nvidia.ko", 1)[1])
    files = modprobe.config_files(HostRoot(str(tmp_path)))
    found = modprobe.module_config(files, "nvidia")
    assert [(item.parameter, item.value) for item in found.assignments] == given_to_kernel
    assert dict(given_to_kernel)["NVreg_RegistryDwords"] == "PeerMappingOverride=1;"
