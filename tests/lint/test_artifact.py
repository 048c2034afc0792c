"""What the collection's artifact holds, read from the one that `scripts/collection` built."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

ARTIFACTS = sorted((Path(__file__).resolve().parents[2] / "build/artifact").glob("*.tar.gz"))


@pytest.fixture(scope="module")
def names():
    assert len(ARTIFACTS) == 1, "run scripts/collection first"
    with tarfile.open(ARTIFACTS[0]) as archive:
        return archive.getnames()


@pytest.mark.parametrize(
    "path",
    ["playbooks/site.yml", "runtime/pyproject.toml", "runtime/CMakeLists.txt", "LICENSE"],
)
def test_a_rollout_finds_what_it_needs(names, path):
    assert path in names


def test_nothing_of_the_workshop_is_in_it(names):
    workshop = {".venv", "build", "dist", "molecule", "__pycache__", ".git", ".cache", ".ci"}
    assert [name for name in names if workshop & set(Path(name).parts)] == []
    assert [name for name in names if name.endswith((".whl", ".so", ".tar.gz", ".pyc"))] == []


def test_it_is_small(names):
    manifest_entries = len(names)
    # A page for each finding of diagnose is a hundred of them.
    assert manifest_entries < 800
    assert ARTIFACTS[0].stat().st_size < 2_000_000
    with tarfile.open(ARTIFACTS[0]) as archive:
        manifest = json.load(archive.extractfile("MANIFEST.json"))
    assert manifest["collection_info"]["name"] == "expert_parallel"


def test_the_doctor_is_one_set_of_files_and_the_collection_links_to_it(names):
    """The wheel takes them from runtime/, module bundling and the controller through the link."""
    with tarfile.open(ARTIFACTS[0]) as archive:
        link = archive.getmember("plugins/module_utils/doctor")
    assert link.issym()
    assert link.linkname == "../../runtime/src/ep_runtime/doctor"
    assert "runtime/src/ep_runtime/doctor/host/facts.py" in names
    assert [name for name in names if name.startswith(link.name + "/")] == []
