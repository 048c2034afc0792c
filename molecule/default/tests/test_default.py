"""The report of a rollout to this machine alone, without root and without a GPU."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

RESULTS = Path(os.environ["MOLECULE_PROJECT_DIRECTORY"]) / "build" / "molecule-default"


@pytest.fixture(scope="module")
def report():
    return json.loads((RESULTS / "report.json").read_text())


def test_report_says_what_really_ran(report):
    assert report["schema_version"] == 3
    assert report["backend"] == "reference"
    assert report["device"] == "cpu"
    assert report["ranks"] == 2
    assert report["correctness"] == "passed"
    assert len(report["hosts"]) == 1


@pytest.mark.parametrize("phase", ["dispatch", "combine", "pair"])
def test_latencies_are_ordered(report, phase):
    measured = report[phase]
    names = ["min_us", "p50_us", "p95_us", "p99_us", "max_us"]
    values = [measured[name] for name in names]
    assert values == sorted(values)
    assert values[0] > 0


def test_html_needs_nothing_but_itself():
    html = (RESULTS / "report.html").read_text()
    assert "<svg" in html or "data:image/png;base64" in html
    assert 'src="http' not in html
    assert 'href="http' not in html.split("</head>")[0]


def test_gpu_roles_left_the_machine_alone():
    assert not Path("/etc/modprobe.d/zz-epfleet-nvidia.conf").exists()
