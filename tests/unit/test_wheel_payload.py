"""One digest for a wheel and for what pip made of it."""

from __future__ import annotations

import subprocess
import sys
import zipfile

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import wheel_payload

NAME = "ep_runtime-0.1.0-py3-none-any.whl"
METADATA = """Metadata-Version: 2.1
Name: ep-runtime
Version: 0.1.0
Requires-Dist: numpy
Requires-Dist: matplotlib; extra == "report"
"""


def make_wheel(path, text="answer = 42\n"):
    files = {
        "ep_runtime/__init__.py": text,
        "ep_runtime/data.txt": "data",
        "ep_runtime-0.1.0.data/purelib/ep_runtime/more.py": "more = 1\n",
        "ep_runtime-0.1.0.data/scripts/ep-tool": "#!python\n",
        "ep_runtime-0.1.0.dist-info/METADATA": METADATA,
        "ep_runtime-0.1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"
        "Generator: test\nTag: py3-none-any\n",
        "ep_runtime-0.1.0.dist-info/entry_points.txt": "[console_scripts]\nep-x = ep_runtime:x\n",
    }
    record = "".join(f"{name},,\n" for name in files)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr("ep_runtime-0.1.0.dist-info/RECORD", record)
    return path


@pytest.fixture
def wheel(tmp_path):
    return make_wheel(tmp_path / NAME)


@pytest.fixture
def site(tmp_path, wheel):
    target = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target"]
    subprocess.run([*command, str(target), str(wheel)], check=True, capture_output=True)
    return target


def payload(wheel):
    return wheel_payload.read_wheel(str(wheel))["payload"]


def installed(site):
    return wheel_payload.read_installed(str(site), "ep-runtime")


def test_a_wheel_tells_its_name_version_and_requirements(wheel):
    about = wheel_payload.read_wheel(str(wheel))
    assert (about["name"], about["version"]) == ("ep-runtime", "0.1.0")
    assert about["requires"] == ["numpy", 'matplotlib; extra == "report"']


def test_what_pip_installed_is_what_the_wheel_holds(wheel, site):
    assert installed(site) == {"version": "0.1.0", "payload": payload(wheel)}


def test_an_edited_file_differs(wheel, site):
    (site / "ep_runtime/data.txt").write_text("date")
    assert installed(site)["payload"] not in (None, payload(wheel))


def test_a_lost_file_is_not_whole(site):
    (site / "ep_runtime/data.txt").unlink()
    assert installed(site) == {"version": "0.1.0", "payload": None}


def test_an_interrupted_pip_is_not_whole(site):
    (site / "ep_runtime-0.1.0.dist-info/RECORD").unlink()
    assert installed(site) == {"version": "0.1.0", "payload": None}


def test_two_versions_at_once_are_not_whole(site):
    (site / "ep_runtime-0.0.9.dist-info").mkdir()
    assert installed(site)["payload"] is None


def test_nothing_is_nothing(tmp_path):
    assert installed(tmp_path) is None


def test_another_build_of_the_same_version_differs(tmp_path, wheel):
    (tmp_path / "other").mkdir()
    assert payload(make_wheel(tmp_path / "other" / NAME, "answer = 43\n")) != payload(wheel)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "no wheel"])
def test_a_damaged_wheel_is_named(wheel, damage):
    content = bytearray(wheel.read_bytes())
    if damage == "cut":
        wheel.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        content[content.index(b"answer")] ^= 1
        wheel.write_bytes(content)
    elif damage == "empty":
        wheel.write_bytes(b"")
    else:
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("x", "y")
    with pytest.raises(wheel_payload.PayloadError, match=NAME.replace(".", r"\.")):
        wheel_payload.read_wheel(str(wheel))
