"""Two builds of one source give the same bytes, wherever they are made."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

RUNTIME = Path(__file__).parents[1]
TOOLS = ("scikit_build_core", "pybind11", "cmake", "ninja")
NOT_SOURCE = shutil.ignore_patterns("tests", "build", "dist", "__pycache__", ".*", "*.so")


def build(directory: Path) -> Path:
    """The wheel of the host part, built from a copy of the source in ``directory``."""
    source = directory / "source"
    shutil.copytree(RUNTIME, source, ignore=NOT_SOURCE)
    for file in source.rglob("*"):
        os.utime(file)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "315532800", "EP_RUNTIME_CUDA": "OFF"}
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--no-cache-dir", "--wheel-dir", str(directory / "wheel"), str(source)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    (wheel,) = (directory / "wheel").iterdir()
    return wheel


@pytest.mark.skipif(
    any(importlib.util.find_spec(tool) is None for tool in TOOLS),
    reason="the build tools of runtime/requirements/build.txt are not installed",
)
def test_builds_in_different_directories_are_equal(tmp_path: Path) -> None:
    first = build(tmp_path / "a")
    second = build(tmp_path / "somewhere" / "else")
    with zipfile.ZipFile(first) as one, zipfile.ZipFile(second) as two:
        assert one.namelist() == two.namelist()
        differing = [name for name in one.namelist() if one.read(name) != two.read(name)]
        assert differing == []
        compiled = [name for name in one.namelist() if name.endswith(".so")]
        assert compiled
        for name in compiled:
            assert str(tmp_path).encode() not in one.read(name)
    assert first.read_bytes() == second.read_bytes()
