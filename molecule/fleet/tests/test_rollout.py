"""The rollout as a whole: its order, its changes, its report."""

from __future__ import annotations

import pytest
from conftest import NAMES, RESULTS

BUILD = "Build the wheel"  # on the first host that gets there, so which one may differ


def changes(run):
    return {(None if task == BUILD else host, task) for host, task in run["changes"]}


def test_hosts_rebooted_one_after_another(all_boots):
    """By the default order, one host and then a quarter of the fleet at a time: of three, one."""
    seconds = [boots[1] for boots in all_boots]
    assert seconds == sorted(seconds)
    assert min(later - earlier for earlier, later in zip(seconds, seconds[1:])) > 2


def test_check_mode_told_what_the_rollout_then_did(runs, rollout):
    check = runs[0]
    assert check["check"]
    assert changes(check) == changes(rollout)


def test_wheel_was_built_on_one_host(rollout):
    assert len([host for host, task in rollout["changes"] if task == BUILD]) == 1


def test_last_rollout_changed_nothing(runs):
    assert runs[-1]["changes"] == []


def test_report_covers_the_fleet(report):
    assert report["schema_version"] == 2
    assert report["backend"] == "reference"
    assert report["ranks"] == 6
    assert report["correctness"] == "passed"
    assert [host["name"] for host in report["hosts"]] == NAMES
    assert [host["ranks"] for host in report["hosts"]] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("phase", ["dispatch", "combine", "pair"])
def test_report_has_latencies(report, phase):
    values = [report[phase][name] for name in ("min_us", "p50_us", "p95_us", "p99_us", "max_us")]
    assert values == sorted(values)
    assert values[0] > 0
    assert len(report["per_rank"]) == 6


def test_page_stands_alone(report):
    html = (RESULTS / "report.html").read_text()
    assert "<svg" in html or "data:image/png;base64" in html
    assert report["run_id"] in html
    assert 'src="http' not in html
