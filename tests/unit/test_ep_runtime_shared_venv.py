"""An environment that others own: their packages stay, and what came with the runtime goes with it.

Runs the real module and the real pip on small wheels; no index is asked.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_payload import (
    read_wheel,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_venv import MARKER
from conftest import CHECKOUT
from test_ep_runtime_install import call

CHECK = (CHECKOUT / "runtime/shim/src/deep_ep/_others.py").read_text()
INIT = "def build_info():\n    return {'version': '0.1.0'}\n"


def make_wheel(folder, name, version="1.0", requires=(), files=None):
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    needs = "".join(f"Requires-Dist: {item}\n" for item in requires)
    content = {
        **(files or {f"{name}.py": f"version = {version!r}\n"}),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in content.items():
            archive.writestr(member, text)
        archive.writestr(
            f"{info}/RECORD", "".join(f"{n},,\n" for n in [*content, f"{info}/RECORD"])
        )
    return path


class Shared:
    """A server's environment, and the wheels that the runtime and its friends come from."""

    def __init__(self, root, wheels=None):
        self.venv = root / "venv"
        self.wheels = wheels or root / "wheels"
        self.wheels.mkdir()
        subprocess.run([sys.executable, "-m", "venv", str(self.venv)], check=True)
        self.python = str(self.venv / "bin/python")
        for name, version, requires in (
            ("server", "1.0", ["mathlib<2"]),
            ("mathlib", "1.0", []),
            ("mathlib", "2.0", []),
            ("printer", "1.0", ["colours"]),
            ("colours", "1.0", []),
        ):
            make_wheel(self.wheels, name, version, requires)
        self.pip("install", "server")

    def pip(self, *arguments):
        command = [self.python, "-m", "pip", "--disable-pip-version-check", *arguments]
        if arguments[0] == "install":
            command += ["--no-index", "--find-links", str(self.wheels)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def packages(self):
        return {line for line in self.pip("freeze", "--all").splitlines() if line}

    def files(self):
        return {
            str(path.relative_to(self.venv))
            for path in self.venv.rglob("*")
            if "__pycache__" not in path.parts
        }

    def runtime(self, *requires):
        files = {"ep_runtime/__init__.py": INIT}
        return make_wheel(self.wheels, "ep-runtime", "0.1.0", requires, files)

    def drop_in(self):
        files = {"deep_ep/__init__.py": "import ep_runtime\n", "deep_ep/_others.py": CHECK}
        needs = ["ep-runtime==0.1.0"]
        return make_wheel(self.wheels, "ep-runtime-deep-ep", "0.1.0", needs, files)

    def install(self, wheel, drop_in=None, **changes):
        arguments = {
            "venv": str(self.venv),
            "python": sys.executable,
            "key": "key",
            "source": "s",
            "cache": "/nonexistent",
            "wheel": str(wheel),
            "payload": read_wheel(str(wheel))["payload"],
            "pip_args": ["--no-index", "--find-links", str(self.wheels)],
            "act": True,
        }
        if drop_in is not None:
            arguments.update(
                drop_in=True,
                drop_in_wheel=str(drop_in),
                drop_in_payload=read_wheel(str(drop_in))["payload"],
                drop_in_check=CHECK,
            )
        return call("ep_runtime_install", **{**arguments, **changes})

    def remove(self):
        return call("ep_runtime_install", state="absent", venv=str(self.venv))


@pytest.fixture
def shared(tmp_path):
    return Shared(tmp_path)


def test_what_came_with_the_runtime_goes_with_it(shared):
    packages, files = shared.packages(), shared.files()
    wheel, drop_in = shared.runtime("mathlib", "printer"), shared.drop_in()
    answer = shared.install(wheel, drop_in)
    assert answer.get("changed"), answer
    assert packages < shared.packages()
    shared.pip("check")
    noted = json.loads((shared.venv / MARKER).read_text())
    assert noted["added"] == ["colours", "printer"]
    again = shared.install(wheel, drop_in)
    assert (again["changed"], again["reasons"]) == (False, [])
    # Somebody has come to need one of them.
    make_wheel(shared.wheels, "plugin", "1.0", ["colours"])
    shared.pip("install", "plugin")
    assert shared.remove()["changed"]
    left = {line.split("==")[0] for line in shared.packages() - packages}
    assert left == {"plugin", "colours"}
    shared.pip("uninstall", "--yes", "plugin", "colours")
    assert shared.files() == files


def test_a_package_of_the_owner_is_never_changed(shared):
    packages, files = shared.packages(), shared.files()
    answer = shared.install(shared.runtime("mathlib>=2"))
    assert answer["failed"]
    assert "mathlib==1.0" in answer["msg"]
    assert shared.packages() == packages
    assert shared.files() == files


def test_a_requirement_of_the_owner_that_would_break_is_a_failure(shared):
    """Nothing of the owner's is changed here, but what is added says that it does not fit."""
    make_wheel(shared.wheels, "fussy", "1.0", ["server>=2"])
    make_wheel(shared.wheels, "server", "2.0", ["mathlib<2"])
    packages = shared.packages()
    answer = shared.install(shared.runtime("fussy"))
    assert answer["failed"]
    assert shared.packages() == packages


def test_problems_that_were_there_before_are_the_owners(shared):
    shared.pip("uninstall", "--yes", "mathlib")
    answer = shared.install(shared.runtime())
    assert answer.get("changed"), answer
    assert (
        "server 1.0 requires mathlib"
        in subprocess.run(
            [shared.python, "-m", "pip", "check"], capture_output=True, text=True, check=False
        ).stdout
    )


def test_another_deep_ep_is_named_before_anything_changes(shared):
    files = {"deep_ep/__init__.py": "", "deep_ep_cpp.abi3.so": ""}
    make_wheel(shared.wheels, "sgl-deep-ep", "0.1.2", files=files)
    shared.pip("install", "sgl-deep-ep")
    packages, tree = shared.packages(), shared.files()
    answer = shared.install(shared.runtime(), shared.drop_in())
    assert answer["failed"]
    assert "sgl-deep-ep 0.1.2" in answer["msg"]
    assert (shared.packages(), shared.files()) == (packages, tree)
    assert shared.install(shared.runtime())["changed"]


def test_two_controllers_at_once_install_one_after_the_other(shared, tmp_path):
    wheel = shared.runtime("mathlib", "printer")
    program = (
        "import json, sys; sys.path[:0] = json.loads(sys.argv[1])\n"
        "from pathlib import Path\n"
        "from test_ep_runtime_shared_venv import Shared\n"
        "shared = Shared.__new__(Shared)\n"
        f"shared.venv = Path({str(shared.venv)!r}); shared.wheels = Path({str(shared.wheels)!r})\n"
        f"print(json.dumps(shared.install(Path({str(wheel)!r}))))\n"
    )
    paths = json.dumps([*sys.path])
    running = [
        subprocess.Popen([sys.executable, "-c", program, paths], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [json.loads(process.communicate()[0].splitlines()[-1]) for process in running]
    assert sorted(answer["changed"] for answer in answers) == [False, True]
    assert all(answer["build_info"] == {"version": "0.1.0"} for answer in answers)
    assert json.loads((shared.venv / MARKER).read_text())["added"] == ["colours", "printer"]
