"""A disk that is really full, wherever a wheel is built, kept or installed.

The disks are small ones in memory, mounted for the test; modules and pip are the real ones.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.epfleet.expert_parallel.plugins.action.ep_runtime_build import (
    ActionModule,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import (
    full_disk,
    wheel_cache,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_source import (
    source_archive,
)
from test_ep_runtime_install import call
from test_ep_runtime_shared_venv import Shared, make_wheel
from test_wheel_rollout import stub_wheel

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
MIB = 1 << 20
SENTENCE = r"The disk is full: {what} needs more room in {path}, where \d+ of {size} MiB are free; "


@pytest.fixture
def disk(tmp_path):
    """Makes ``disk(size)``: a mounted folder of that many MiB."""
    mounted = []

    def make(size):
        path = tmp_path / f"disk{len(mounted)}"
        path.mkdir()
        options = f"size={size}m,mode=0755"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(path)], check=True)
        mounted.append(path)
        return path

    yield make
    for path in mounted:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def expect(told, what, path, size, remedy):
    """The first line is the sentence, and names the variable to change."""
    first = told.splitlines()[0]
    assert re.match(SENTENCE.format(what=what, path=re.escape(str(path)), size=size), first), told
    assert remedy in first


def bulky(folder, name, mib, requires=()):
    files = {f"{name}/__init__.py": "", f"{name}/data": "0" * (mib * MIB)}
    return make_wheel(folder, name, "1.0", requires, files)


def test_an_error_of_something_else_stays_as_it_is(disk):
    path = str(disk(16))
    error = OSError("no such option")
    assert full_disk.explained(error, "x", path, "y") is error
    for full in (OSError(28, "No space left on device"), RuntimeError("g++: Disk quota exceeded")):
        told = str(full_disk.explained(full, "x", path, "y"))
        expect(told, "x", path, 16, "y")
        assert str(full) in told


def test_a_program_that_swallows_the_reason(disk):
    """venv says only that ensurepip failed."""
    path = disk(16)
    (path / "filler").write_bytes(b"0" * 15 * MIB)
    told = str(full_disk.explained(RuntimeError("exit status 1"), "x", str(path / "a/b"), "y"))
    expect(told, "x", path / "a/b", 16, "y")


@pytest.mark.parametrize(("size", "tool_mib"), [(6, 0), (40, 40)])
def test_the_folder_of_a_build(disk, tmp_path, size, tool_mib):
    """Full while the environment is made, and while the tools are installed."""
    folder = disk(size)
    tools = tmp_path / "tools"
    tools.mkdir()
    pin = stub_wheel(tools, "cmake")
    if tool_mib:
        wheel = bulky(tools, "ninja", tool_mib)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        pin += f"ninja==1.0 --hash=sha256:{digest}\n"
    archive = tmp_path / "source.tar.gz"
    archive.write_bytes(source_archive({"requirements/build.txt": pin.encode()}))
    answer = call(
        "ep_runtime_build",
        key="key",
        inputs={},
        cache="/nonexistent",
        python=sys.executable,
        directory=str(folder / "build"),
        archive=str(archive),
        pip_args=["--no-index", "--find-links", str(tools)],
    )
    expect(answer["msg"], "building the wheel", folder / "build/key", size, "ep_runtime_build_dir")
    assert list(folder.iterdir()) == []


def test_a_new_environment(disk, tmp_path):
    folder = disk(6)
    wheel = make_wheel(tmp_path, "ep-runtime", "0.1.0", files={"ep_runtime/__init__.py": ""})
    answer = install(folder / "venv", wheel, tmp_path)
    expect(answer["msg"], "installing the runtime", folder / "venv", 6, "ep_runtime_venv")
    assert list(folder.iterdir()) == []


def install(venv, wheel, wheels, **changes):
    given = {
        "venv": str(venv),
        "python": sys.executable,
        "key": "key",
        "source": "s",
        "cache": "/nonexistent",
        "wheel": str(wheel),
        "pip_args": ["--no-index", "--find-links", str(wheels)],
        "act": True,
    }
    return call("ep_runtime_install", **{**given, **changes})


def test_an_environment_of_others(disk, tmp_path):
    """What pip had installed before the disk was full is taken away; with room it goes through."""
    folder = disk(80)
    shared = Shared(folder, tmp_path / "wheels")
    bulky(shared.wheels, "heavy", 90, ["printer"])
    packages, files = shared.packages(), shared.files()
    answer = shared.install(shared.runtime("heavy", "colours"))
    expect(answer["msg"], "installing the runtime", shared.venv, 80, "ep_runtime_venv")
    assert (shared.packages(), shared.files()) == (packages, files)
    subprocess.run(["mount", "-o", "remount,size=400m", str(folder)], check=True)
    assert shared.install(shared.runtime("heavy", "colours"))["changed"]
    assert not list(shared.venv.glob(".epfleet-tmp-*"))


def test_the_runtime_that_is_there_still_works(disk, tmp_path):
    folder = disk(120)
    shared = Shared(folder, tmp_path / "wheels")
    shared.install(shared.runtime())
    files = shared.files()
    content = {"ep_runtime/__init__.py": "broken", "ep_runtime/data": "0" * (100 * MIB)}
    wheel = make_wheel(shared.wheels, "ep-runtime", "0.1.0", files=content)
    answer = shared.install(wheel, key="other")
    expect(answer["msg"], "installing the runtime", shared.venv, 120, "ep_runtime_venv")
    assert shared.files() == files
    ask = [shared.python, "-c", "import ep_runtime; print(ep_runtime.build_info()['version'])"]
    assert subprocess.run(ask, capture_output=True, text=True, check=True).stdout == "0.1.0\n"


def test_the_controllers_cache(disk):
    cache = disk(4)
    about = {"payload": "p", "inputs": {"source": "s"}, "built_on": "n1"}
    first = wheel_cache.store(str(cache), "one", "a.whl", b"0" * MIB, about)
    action = ActionModule.__new__(ActionModule)
    content = b"0" * 4 * MIB
    wheel = {
        "content": base64.b64encode(content).decode(),
        "sha256": hashlib.sha256(content).hexdigest(),
        "file": "b.whl",
        "payload": "p",
    }
    with pytest.raises(AnsibleActionFail) as caught:
        action._keep(str(cache), "two", wheel, {}, {})
    expect(str(caught.value), "storing the wheel on the controller", cache, 4, "ep_runtime_cache")
    assert [path.name for path in cache.iterdir()] == ["one"]
    assert wheel_cache.lookup(str(cache), "one")[0] == first


def test_a_cache_without_room_is_found_before_a_host_builds(disk):
    cache = disk(16)
    action = ActionModule.__new__(ActionModule)
    with pytest.raises(AnsibleActionFail) as caught:
        action._require_room(str(cache / "wheels"))
    path = cache / "wheels"
    expect(str(caught.value), "storing the wheel on the controller", path, 16, "ep_runtime_cache")
    action._require_room(str(Path("/")))
