"""What tests over a fleet share: its hosts, and the records that a scenario keeps of its runs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from testinfra.utils.ansible_runner import AnsibleRunner

SCENARIO = Path(os.environ["MOLECULE_SCENARIO_DIRECTORY"])
RESULTS = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"]) / "build" / SCENARIO.name
INVENTORY = SCENARIO / "inventory"
RUNNER = AnsibleRunner(str(INVENTORY))
NAMES = RUNNER.get_hosts("ep_fleet")
BACKENDS = [f"ansible://{name}?ansible_inventory={INVENTORY}&sudo=true" for name in NAMES]


@pytest.fixture(scope="module")
def boots(host):
    """The times at which the host was started, by the supervisor outside of it."""
    directory = Path(RUNNER.get_variables(host.backend.host)["fleet_directory"])
    return [float(line) for line in (directory / "boots").read_text().splitlines()]


@pytest.fixture(scope="session")
def all_boots():
    """Each host's boot times, in the inventory's order."""
    directories = [Path(RUNNER.get_variables(name)["fleet_directory"]) for name in NAMES]
    return [
        [float(line) for line in (directory / "boots").read_text().splitlines()]
        for directory in directories
    ]


@pytest.fixture(scope="session")
def runs():
    """The changes of every run of site.yml, oldest first."""
    records = [json.loads(path.read_text()) for path in sorted((RESULTS / "changes").iterdir())]
    return [record for record in records if record["playbook"] in ("site.yml", "converge.yml")]


@pytest.fixture(scope="session")
def wheels():
    """The manifests of the runtime's wheels in the controller's cache, each with its `path`."""
    paths = sorted((RESULTS / "wheels").glob("*/wheel.json"))
    manifests = [{**json.loads(path.read_text()), "path": path.parent} for path in paths]
    return [each for each in manifests if each["file"].startswith("ep_runtime-")]


@pytest.fixture(scope="session")
def report():
    return json.loads((RESULTS / "report.json").read_text())


@pytest.fixture(scope="session")
def rollout(runs):
    """The first run that was not in check mode."""
    return next(run for run in runs if not run["check"])
