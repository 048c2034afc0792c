"""The role ep_runtime on three hosts with two Pythons: how often it builds, and where.

The hosts are environments on this machine; the runtime is a small one, whose build counts itself.
Everything else is real: the role, its modules, pip. No index is asked.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import CHECKOUT

NAMES = ("one", "two", "three")

PYPROJECT = """[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""

BACKEND = """
import os, sys, zipfile
from pathlib import Path

NAME, VERSION = {name!r}, Path("version").read_text()

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    with open(os.environ["EPFLEET_TEST_LOG"], "a") as log:
        nvcc = os.environ.get("CUDACXX", "-")
        if nvcc != "-":
            os.stat(Path(nvcc).parents[1] / "lib64/libcudart.so")
        log.write(f"{{NAME}} {{sys.version_info.minor}} {{nvcc}}\\n")
    info = f"{{NAME}}-{{VERSION}}.dist-info"
    files = {{
        str(path.relative_to("src")): path.read_text()
        for path in sorted(Path("src").rglob("*.py")) if "doctor" not in path.parts
    }}
    head = f"Metadata-Version: 2.1\\nName: {{NAME.replace('_', '-')}}\\nVersion: {{VERSION}}\\n"
    files[f"{{info}}/METADATA"] = head + {requires!r}
    tag = "cp3{{}}-none-any".format(sys.version_info.minor)
    files[f"{{info}}/WHEEL"] = (
        f"Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: {{tag}}\\n")
    files[f"{{info}}/RECORD"] = "".join(f"{{name}},,\\n" for name in [*files, f"{{info}}/RECORD"])
    wheel = f"{{NAME}}-{{VERSION}}-{{tag}}.whl"
    with zipfile.ZipFile(Path(wheel_directory) / wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)
    return wheel
"""

PLAY = """
- hosts: all
  gather_facts: false
  roles: [epfleet.expert_parallel.ep_runtime]
"""


def other_python():
    """An interpreter of another minor version than this one's, with venv; None without one."""
    here = sys.version_info.minor
    found = [shutil.which(f"python3.{minor}") for minor in range(9, 16) if minor != here]
    found += sorted(str(p) for p in Path.home().glob(".pyenv/versions/3.*/bin/python3"))
    ask = "import ensurepip, sys, venv; print(sys.version_info.minor)"
    for python in filter(None, found):
        done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False)
        minor = done.stdout.strip()
        if done.returncode == 0 and minor.isdigit() and int(minor) >= 9 and int(minor) != here:
            return python
    return None


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def stub_wheel(folder, name, *files):
    """A tool that a build asks for and this one does not use; its line in a list with hashes."""
    info = f"{name}-9.0.dist-info"
    path = folder / f"{name}-9.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in files:
            archive.writestr(file, "")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 9.0\n")
        wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}/WHEEL", wheel)
        listed = [*files, f"{info}/METADATA", f"{info}/WHEEL", f"{info}/RECORD"]
        archive.writestr(f"{info}/RECORD", "".join(f"{file},,\n" for file in listed))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{name.replace('_', '-')}==9.0 --hash=sha256:{digest}\n"


NVCC_FILES = ("nvidia/cu13/bin/nvcc", "nvidia/cu13/lib/libcudart.so.13")


class Fleet:
    """Three hosts, a collection whose runtime builds in no time, and the controller's cache."""

    def __init__(self, root, second_python):
        self.root = root
        self.cache = root / "cache"
        self.log = root / "builds"
        self.log.write_text("")
        self.tools = root / "tools"
        self.tools.mkdir()
        self.empty = root / "empty"
        self.empty.mkdir()
        tools = "".join(stub_wheel(self.tools, name) for name in ("cmake", "ninja"))
        compiler = stub_wheel(self.tools, "nvidia_cuda_nvcc", *NVCC_FILES)
        self.pythons = {"one": sys.executable, "two": sys.executable, "three": second_python}
        self.collection = root / "collections/ansible_collections/epfleet/expert_parallel"
        for part in ("plugins", "roles/ep_runtime", "meta"):
            shutil.copytree(CHECKOUT / part, self.collection / part, symlinks=True)
        shutil.copy(CHECKOUT / "galaxy.yml", self.collection)
        self.runtime = self.collection / "runtime"
        shutil.copytree(
            CHECKOUT / "runtime/src/ep_runtime/doctor", self.runtime / "src/ep_runtime/doctor"
        )
        self.source("first")
        write(self.runtime / "requirements/build.txt", tools)
        write(self.runtime / "requirements/cuda13.txt", compiler)
        shim = "Requires-Dist: ep-runtime==0.1.0\n"
        for folder, name, requires in (
            ("", "ep_runtime", ""),
            ("shim", "ep_runtime_deep_ep", shim),
        ):
            write(self.runtime / folder / "pyproject.toml", PYPROJECT)
            text = BACKEND.format(name=name, requires=requires)
            write(self.runtime / folder / "backend.py", text)
        write(self.runtime / "shim/src/deep_ep/__init__.py", "import ep_runtime\n")
        others = CHECKOUT / "runtime/shim/src/deep_ep/_others.py"
        write(self.runtime / "shim/src/deep_ep/_others.py", others.read_text())
        write(root / "play.yml", PLAY)

    def source(self, build, version="0.1.0"):
        text = f"def build_info():\n    return {{'version': {version!r}, 'build': {build!r}}}\n"
        write(self.runtime / "src/ep_runtime/__init__.py", text)
        for folder in (self.runtime, self.runtime / "shim"):
            write(folder / "version", version)

    def venv(self, name):
        return self.root / name / "venv"

    def run(self, broken=(), check=0, **settings):
        """Run the role; ``broken`` hosts find no build tools. Returns what changed by host."""
        hosts = {
            name: {
                "ansible_connection": "local",
                "ansible_python_interpreter": sys.executable,
                "ep_runtime_python": self.pythons[name],
                "ep_runtime_venv": str(self.venv(name)),
                "ep_runtime_torch": "pip",
                "ep_runtime_extras": [],
                "ep_runtime_cuda": "off",
                "ep_runtime_cache": str(self.cache),
                "ep_runtime_pip_args": [
                    "--no-index",
                    "--find-links",
                    str(self.empty if name in broken else self.tools),
                ],
                **settings,
            }
            for name in NAMES
        }
        write(self.root / "hosts.json", json.dumps({"all": {"hosts": hosts}}))
        environment = {
            **os.environ,
            "ANSIBLE_COLLECTIONS_PATH": str(self.root / "collections"),
            "ANSIBLE_HOME": str(self.root / "ansible"),
            "ANSIBLE_NOCOLOR": "1",
            "EPFLEET_TEST_LOG": str(self.log),
            "PIP_NO_INDEX": "1",
        }
        command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "hosts.json"]
        done = subprocess.run(
            [*command, "play.yml"],
            cwd=self.root,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        self.output = done.stdout + done.stderr
        assert done.returncode == check, self.output
        recap = re.findall(r"^(\w+) +: .*changed=(\d+)", self.output, re.MULTILINE)
        return {name: int(changed) for name, changed in recap}

    def builds(self):
        """Python minor version of each build of the runtime since the last call."""
        return sorted(minor for minor, _nvcc in self.compilers())

    def compilers(self):
        """The same, each with the CUDA compiler that it was told."""
        lines = [line.split() for line in self.log.read_text().splitlines()]
        self.log.write_text("")
        return sorted((minor, nvcc) for name, minor, nvcc in lines if name == "ep_runtime")

    def installed(self, name, module="ep_runtime"):
        ask = f"import {module} as m; print(getattr(m, 'build_info', dict)())"
        command = [str(self.venv(name) / "bin/python"), "-c", ask]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    second = other_python()
    if second is None:
        pytest.skip("needs a second Python version on this machine")
    return Fleet(tmp_path_factory.mktemp("fleet"), second)


@pytest.fixture(scope="module")
def minors(fleet):
    ask = "import sys; print(sys.version_info.minor)"
    return {
        python: subprocess.run(
            [python, "-c", ask], capture_output=True, text=True, check=True
        ).stdout.strip()
        for python in set(fleet.pythons.values())
    }


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


# The steps follow each other, as on a fleet; each says what it starts from.


def test_two_kinds_of_host_build_twice(fleet, minors):
    changed = fleet.run()
    assert fleet.builds() == sorted(minors.values())
    assert min(changed.values()) > 0
    assert {fleet.installed(name) for name in NAMES} == {"{'version': '0.1.0', 'build': 'first'}"}
    for name in NAMES:
        pip = [str(fleet.venv(name) / "bin/python"), "-m", "pip", "check"]
        assert subprocess.run(pip, capture_output=True, check=False).returncode == 0


def test_a_second_run_builds_and_changes_nothing(fleet):
    assert fleet.run() == dict.fromkeys(NAMES, 0)
    assert fleet.builds() == []


def test_a_newer_version_is_built_once_and_the_one_before_comes_back(fleet, minors):
    fleet.source("first", "0.2.0")
    fleet.run()
    assert fleet.builds() == sorted(minors.values())
    assert {fleet.installed(name) for name in NAMES} == {"{'version': '0.2.0', 'build': 'first'}"}
    assert fleet.run() == dict.fromkeys(NAMES, 0)
    fleet.source("first")
    fleet.run()
    assert {fleet.installed(name) for name in NAMES} == {"{'version': '0.1.0', 'build': 'first'}"}
    assert fleet.run() == dict.fromkeys(NAMES, 0)
    assert fleet.builds() == []


def test_a_controller_with_an_empty_cache_builds_nothing_for_hosts_that_are_right(fleet):
    assert fleet.run(ep_runtime_cache=str(fleet.root / "other cache")) == dict.fromkeys(NAMES, 0)
    assert fleet.builds() == []


def test_a_damaged_wheel_in_the_cache_is_built_again_where_it_is_needed(fleet, minors):
    for wheel in fleet.cache.rglob("ep_runtime-*.whl"):
        damage(wheel)
    shutil.rmtree(fleet.venv("two"))
    changed = fleet.run()
    assert fleet.builds() == [minors[sys.executable]]
    assert (changed["one"], changed["three"]) == (0, 0)
    assert "'first'" in fleet.installed("two")


def test_another_host_builds_when_the_first_can_not(fleet, minors):
    fleet.source("second")
    fleet.run(broken=("one",))
    assert fleet.builds() == sorted(minors.values())
    assert {fleet.installed(name) for name in NAMES} == {"{'version': '0.1.0', 'build': 'second'}"}
    assert "one could not build the wheel" in fleet.output


def test_where_no_host_of_a_kind_can_build_only_that_kind_fails(fleet, minors):
    fleet.source("third")
    fleet.run(broken=("one", "two"), check=2)
    assert fleet.builds() == [minors[fleet.pythons["three"]]]
    assert "There is no wheel for this host" in fleet.output
    assert set(re.findall(r"fatal: \[(\w+)\]", fleet.output)) == {"one", "two"}
    assert ["'third'" in fleet.installed(name) for name in NAMES] == [False, False, True]


def test_the_drop_in_comes_on_demand_and_goes(fleet, minors):
    fleet.run(ep_runtime_deep_ep=True)
    assert fleet.builds() == [minors[sys.executable]]
    assert [fleet.installed(name, "deep_ep") for name in NAMES] == ["{}"] * 3
    assert fleet.run(ep_runtime_deep_ep=True) == dict.fromkeys(NAMES, 0)
    fleet.run()
    assert [fleet.installed(name, "deep_ep") for name in NAMES] == [""] * 3


PYPI = {"ep_runtime_cuda": "on", "ep_runtime_cuda_compiler": "pypi"}


def test_the_cuda_compiler_comes_from_pypi(fleet, minors):
    """A wheel of its own key, built once a Python with the nvcc that pip has installed."""
    before = {path.name for path in fleet.cache.iterdir()}
    fleet.run(**PYPI)
    built = fleet.compilers()
    assert [minor for minor, _nvcc in built] == sorted(minors.values())
    for _minor, nvcc in built:
        assert nvcc.endswith("/site-packages/nvidia/cu13/bin/nvcc")
        assert not Path(nvcc).exists()
    made = {path.name for path in fleet.cache.iterdir()} - before
    assert all("-cu13-" in name for name in made)
    inputs = {
        json.loads((fleet.cache / name / "wheel.json").read_text())["inputs"]["cuda"]["compiler"]
        for name in made
    }
    assert inputs == {"9.0"}
    assert fleet.run(**PYPI) == dict.fromkeys(NAMES, 0)
    assert fleet.builds() == []


def test_a_compiler_that_is_not_the_pinned_one_is_not_used(fleet):
    pins = fleet.runtime / "requirements/cuda13.txt"
    whole = pins.read_text()
    pins.write_text(whole.replace("sha256:", "sha256:0")[:-2] + "\n")
    try:
        fleet.run(check=2, **PYPI)
    finally:
        pins.write_text(whole)
    assert "do not match the hashes" in fleet.output.lower()
    assert fleet.builds() == []


def test_a_wheel_that_is_given_is_installed_and_nothing_built(fleet):
    wheels = fleet.root / "given"
    wheels.mkdir()
    for wheel in fleet.cache.rglob(f"ep_runtime-*-cp3{sys.version_info.minor}-*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            if b"'third'" in archive.read("ep_runtime/__init__.py"):
                shutil.copy(wheel, wheels)
    (wheel,) = wheels.glob("ep_runtime-*.whl")
    fleet.pythons["three"] = sys.executable
    shutil.rmtree(fleet.venv("three"))
    fleet.run(ep_runtime_wheel=str(wheel))
    assert fleet.builds() == []
    assert all("'third'" in fleet.installed(name) for name in NAMES)
    assert fleet.run(ep_runtime_wheel=str(wheel)) == dict.fromkeys(NAMES, 0)
    links = {"ep_runtime_pip_args": ["--no-index", "--find-links", str(wheels)]}
    fleet.run(ep_runtime_version="0.1.0", **links)
    assert fleet.builds() == []
    assert fleet.run(ep_runtime_version="0.1.0", **links) == dict.fromkeys(NAMES, 0)
    damage(wheel)
    shutil.rmtree(fleet.venv("three"))
    fleet.run(check=2, ep_runtime_wheel=str(wheel))
    assert not (fleet.venv("three") / "bin").exists()
