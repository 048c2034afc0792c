"""A newer runtime reaches every host, built once for each kind, and the one before comes back.

The newer one is a copy of the collection with another version of the runtime. Runs after all that
counts the runs before.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import testinfra
from conftest import BACKENDS, INVENTORY, NAMES, RESULTS
from test_hosts import VENV
from test_killed import ENVIRONMENT
from test_rollout import NEWER, OLDER, builders, changes

testinfra_hosts = BACKENDS

COLLECTION = "ansible_collections/epfleet/expert_parallel"
BEFORE, AFTER = "0.1.0", "0.2.0"
COMMAND = [
    "ansible-playbook",
    f"--inventory={INVENTORY}",
    "--tags=ep_runtime",
    "epfleet.expert_parallel.site",
]


def run(collections, *arguments):
    """Roll out with the collection below ``collections``; what the run changed."""
    environment = {**ENVIRONMENT, "ANSIBLE_COLLECTIONS_PATH": str(collections)}
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout[-3000:]
    newest = max((RESULTS / "changes").iterdir(), key=lambda path: float(path.name[:14]))
    return json.loads(newest.read_text())


def version(host):
    return host.check_output(
        f"{VENV}/bin/python -c 'import ep_runtime; print(ep_runtime.__version__)'"
    )


def versions():
    return {version(testinfra.get_host(backend)) for backend in BACKENDS}


@pytest.fixture(scope="module")
def present():
    """Where the collection is that the scenario rolled out."""
    paths = [Path(path) for path in os.environ["ANSIBLE_COLLECTIONS_PATH"].split(":")]
    return next(path for path in paths if (path / COLLECTION).is_dir())


@pytest.fixture(scope="module")
def newer(present):
    target = RESULTS / "newer"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(present / COLLECTION, target / COLLECTION, symlinks=True)
    project = target / COLLECTION / "runtime/pyproject.toml"
    text = project.read_text()
    assert f'version = "{BEFORE}"' in text
    project.write_text(text.replace(f'version = "{BEFORE}"', f'version = "{AFTER}"', 1))
    return target


@pytest.fixture(scope="module")
def upgraded(newer):
    return run(newer, "--check"), run(newer), versions(), run(newer)


def test_each_kind_of_host_built_the_newer_one_once(upgraded):
    _check, rollout, _versions, _again = upgraded
    older_builder, newer_builder = builders(rollout)
    assert older_builder in OLDER
    assert newer_builder in NEWER


def test_every_host_has_it(upgraded):
    assert upgraded[2] == {AFTER}
    assert {name for name, _task in upgraded[1]["changes"]} == set(NAMES)


def test_check_mode_told_it(upgraded):
    check, rollout, _versions, _again = upgraded
    assert changes(check) == changes(rollout)


def test_and_then_nothing_changes(upgraded):
    assert upgraded[3]["changes"] == []


@pytest.fixture(scope="module")
def back(upgraded, present):
    return run(present), versions(), run(present)


def test_the_version_before_comes_back_out_of_the_cache(back):
    rollout, found, again = back
    assert builders(rollout) == []
    assert found == {BEFORE}
    assert again["changes"] == []


def test_packages_fit_each_other_again(host, back):
    checked = host.run(f"{VENV}/bin/python -m pip check")
    assert (checked.rc, checked.stdout.strip()) == (0, "No broken requirements found.")
