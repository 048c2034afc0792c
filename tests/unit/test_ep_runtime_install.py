"""The runtime is installed by what the environment holds, whatever an earlier run left there.

Runs the real modules and the real pip on a small wheel; no index is asked.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_payload import (
    read_wheel,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_venv import MARKER
from conftest import CHECKOUT, COLLECTIONS

MODULES = CHECKOUT / "plugins" / "modules"
NAME = "ep_runtime-0.1.0-py3-none-any.whl"
INIT = "def build_info():\n    return {'version': '0.1.0', 'build': %r}\n"


def make_wheel(path, build="one", requires=()):
    head = "Metadata-Version: 2.1\nName: ep-runtime\nVersion: 0.1.0\n"
    files = {
        "ep_runtime/__init__.py": INIT % build,
        **{f"ep_runtime/part{number}.py": "x = 1\n" for number in range(60)},
        "ep_runtime-0.1.0.dist-info/METADATA": head
        + "".join(f"Requires-Dist: {item}\n" for item in requires),
        "ep_runtime-0.1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"
        "Generator: test\nTag: py3-none-any\n",
    }
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        record = "".join(f"{name},,\n" for name in files)
        archive.writestr("ep_runtime-0.1.0.dist-info/RECORD", record)
    return str(path)


def call(module, **arguments):
    """Run a module; it asks no index but with ``index=True``."""
    check = arguments.pop("check_mode", False)
    index = {} if arguments.pop("index", False) else {"PIP_NO_INDEX": "1"}
    given = {"ANSIBLE_MODULE_ARGS": {**arguments, "_ansible_check_mode": check}}
    environment = {**os.environ, "PYTHONPATH": str(COLLECTIONS), **index}
    done = subprocess.run(
        [sys.executable, str(MODULES / f"{module}.py")],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


class Target:
    """One environment, and what shall be in it."""

    def __init__(self, venv, wheel):
        self.venv = Path(venv)
        self.wheel = wheel
        self.right = False
        self.site = self.venv / "lib" / "python{}.{}".format(*sys.version_info) / "site-packages"

    def arguments(self, **changes):
        ours = {
            "venv": str(self.venv),
            "python": sys.executable,
            "key": "key-one",
            "source": "s",
            "cache": "/nonexistent",
            "wheel": self.wheel,
            "payload": read_wheel(self.wheel)["payload"],
            "act": True,
        }
        return {**ours, **changes}

    def install(self, **changes):
        answer = call("ep_runtime_install", **self.arguments(**changes))
        assert "failed" not in answer, answer["msg"]
        self.right = not changes
        return answer

    def again(self):
        """A second run changes nothing and imports what was wanted."""
        answer = self.install()
        assert (answer["changed"], answer["reasons"]) == (False, [])
        return answer["build_info"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("runtime")


@pytest.fixture(scope="module")
def installed_once(home):
    target = Target(home / "venv", make_wheel(home / "one" / NAME))
    first = target.install(check_mode=True)
    assert first["changed"]
    assert not target.venv.exists()
    answer = target.install()
    assert answer["changed"]
    assert answer["build_info"]["build"] == "one"
    return target


@pytest.fixture
def target(installed_once):
    """The environment with build "one", mended where the test before has left another state."""
    if not installed_once.right:
        installed_once.install()
    yield installed_once
    marker = installed_once.venv / MARKER
    noted = json.loads(marker.read_text()) if marker.exists() else {}
    installed_once.right = installed_once.right and noted.get("key") == "key-one"


def test_a_second_run_changes_nothing(target):
    assert target.again()["build"] == "one"


def test_a_host_without_the_wheel_asks_for_it(target):
    (target.site / "ep_runtime/part1.py").write_text("x = 2\n")
    answer = target.install(act=False)
    assert answer["reasons"] == ["another build of ep-runtime is installed"]
    assert (target.site / "ep_runtime/part1.py").read_text() == "x = 2\n"


def test_check_mode_says_what_it_would_change_and_changes_nothing(target):
    (target.site / "ep_runtime/part1.py").unlink()
    answer = target.install(check_mode=True)
    assert answer["changed"]
    assert answer["diff"]["before"] != answer["diff"]["after"]
    assert not (target.site / "ep_runtime/part1.py").exists()


def damage_edit(target):
    (target.site / "ep_runtime/__init__.py").write_text(INIT % "edited")


def damage_lost_file(target):
    (target.site / "ep_runtime/part7.py").unlink()


def damage_no_record(target):
    (target.site / "ep_runtime-0.1.0.dist-info/RECORD").unlink()


def damage_half_written(target):
    (target.site / "ep_runtime-0.1.0.dist-info/RECORD").unlink()
    (target.site / "ep_runtime-0.1.0.dist-info/INSTALLER").unlink()
    shutil.rmtree(target.site / "ep_runtime")


def damage_no_dist_info(target):
    shutil.rmtree(target.site / "ep_runtime-0.1.0.dist-info")


def damage_half_pip(target):
    shutil.rmtree(target.site / "pip/_internal/cli")


def damage_no_interpreter(target):
    (target.venv / "bin/python").unlink()


def damage_no_config(target):
    (target.venv / "pyvenv.cfg").unlink()


def damage_no_marker(target):
    (target.venv / MARKER).unlink()


def damage_half_marker(target):
    (target.venv / MARKER).write_text('{"key": ')


DAMAGES = [
    damage_edit,
    damage_lost_file,
    damage_no_record,
    damage_half_written,
    damage_no_dist_info,
    damage_half_pip,
    damage_no_interpreter,
    damage_no_config,
    damage_no_marker,
    damage_half_marker,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_damage_is_found_and_mended(target, damage):
    damage(target)
    answer = target.install()
    assert answer["changed"]
    assert answer["reasons"]
    assert answer["build_info"]["build"] == "one"


def test_a_new_build_replaces_the_old_one(target, home):
    other = Target(target.venv, make_wheel(home / "two" / NAME, "two"))
    assert other.install(key="key-two")["build_info"]["build"] == "two"
    assert call("ep_runtime_install", **other.arguments(key="key-two"))["changed"] is False


def test_a_verified_build_of_another_controller_stays(target, home):
    """The same key built elsewhere: other bytes, but verified for this key."""
    other = make_wheel(home / "three" / NAME, "three")
    answer = target.install(payload=read_wheel(other)["payload"], wheel=other)
    assert (answer["changed"], answer["build_info"]["build"]) == (False, "one")


def test_an_unmet_requirement_fails_with_pips_words(target):
    arguments = target.arguments(requirements=["surely-not-installed>=3"])
    answer = call("ep_runtime_install", **arguments)
    assert answer["failed"]
    assert "surely-not-installed" in answer["msg"]
    found = call("ep_runtime_info", venv=str(target.venv), requirements=["surely-not-installed"])
    assert found["venv"]["problems"] == ["surely-not-installed is not installed"]


def test_a_runtime_that_does_not_import_is_a_failure(target, home):
    wheel = make_wheel(home / "four" / NAME, "four", requires=["pip"])
    broken = Target(target.venv, wheel)
    text = INIT.replace("def", "import not_there\ndef")
    broken.wheel = str(rewrite(Path(wheel), "ep_runtime/__init__.py", text % "four"))
    answer = call("ep_runtime_install", **broken.arguments(key="key-four"))
    assert answer["failed"]
    assert "No module named 'not_there'" in answer["msg"]
    assert json.loads((target.venv / MARKER).read_text())["key"] != "key-four"


def rewrite(wheel, member, text):
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    files[member] = text.encode()
    record = "ep_runtime-0.1.0.dist-info/RECORD"
    files[record] = "".join(f"{name},,\n" for name in files).encode()
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return wheel


def test_a_run_killed_at_any_moment_is_completed_by_the_next(target, home):
    other = Target(target.venv, make_wheel(home / "five" / NAME, "five"))
    given = json.dumps({"ANSIBLE_MODULE_ARGS": other.arguments(key="key-five")})
    for delay in (1.2, 2.2):
        process = subprocess.Popen(
            [sys.executable, str(MODULES / "ep_runtime_install.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": str(COLLECTIONS), "PIP_NO_INDEX": "1"},
            start_new_session=True,
        )
        process.stdin.write(given)
        process.stdin.close()
        time.sleep(delay)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert other.install(key="key-five")["build_info"]["build"] == "five"
        assert target.install()["build_info"]["build"] == "one"


def test_info_tells_interpreter_tools_and_state(target):
    found = call("ep_runtime_info", venv=str(target.venv))
    assert found["python"]["executable"] == str(target.venv / "bin/python")
    assert found["venv"]["installed"]["version"] == "0.1.0"
    assert set(found["missing_tools"]) <= {"python", "venv", "headers", "compiler"}
    nothing = call("ep_runtime_info", venv="/nonexistent/venv", python="/nonexistent/python")
    assert nothing["python"] is None
    assert {"python", "venv", "headers"} <= set(nothing["missing_tools"])


def test_absent_leaves_an_environment_that_was_there_before(home):
    venv = home / "foreign"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    target = Target(venv, make_wheel(home / "one" / NAME))
    target.install()
    removed = call("ep_runtime_install", state="absent", venv=str(venv))
    assert removed["changed"]
    assert not (target.site / "ep_runtime").exists()
    assert (venv / "bin/python").exists()
    assert not (venv / MARKER).exists()
    assert not call("ep_runtime_install", state="absent", venv=str(venv))["changed"]


def test_absent_removes_an_environment_of_ours(target):
    # The tests above have lost the note that this environment is ours.
    noted = json.loads((target.venv / MARKER).read_text())
    (target.venv / MARKER).write_text(json.dumps({**noted, "created": True}))
    assert call("ep_runtime_install", state="absent", venv=str(target.venv), check_mode=True)[
        "changed"
    ]
    assert target.venv.exists()
    assert call("ep_runtime_install", state="absent", venv=str(target.venv))["changed"]
    assert not target.venv.exists()
    assert not call("ep_runtime_install", state="absent", venv=str(target.venv))["changed"]
