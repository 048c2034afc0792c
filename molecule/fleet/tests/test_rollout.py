"""The rollout as a whole: its order, its changes, its report."""

from __future__ import annotations

import pytest
from conftest import NAMES, RESULTS

BUILD = "Build the wheel"  # on the first host of its kind that gets there, so which one may differ
OLDER, NEWER = NAMES[:2], NAMES[2:]  # Debian 12 and Debian 13


def changes(run):
    return {(host in NEWER if task == BUILD else host, task) for host, task in run["changes"]}


def builders(run):
    return sorted(host for host, task in run["changes"] if task == BUILD)


def test_hosts_rebooted_one_after_another(all_boots):
    """By the default order, one host and then a quarter of the fleet at a time: of three, one."""
    seconds = [boots[1] for boots in all_boots]
    assert seconds == sorted(seconds)
    assert min(later - earlier for earlier, later in zip(seconds, seconds[1:])) > 2


def test_check_mode_told_what_the_rollout_then_did(runs, rollout):
    check = runs[0]
    assert check["check"]
    assert changes(check) == changes(rollout)


def test_three_hosts_of_two_kinds_built_two_wheels(rollout, wheels):
    older, newer = builders(rollout)
    assert older in OLDER
    assert newer in NEWER
    assert sorted(wheel["built_on"] for wheel in wheels) == [older, newer]
    assert len({wheel["path"].name for wheel in wheels}) == 2


def test_no_later_run_built_a_wheel(runs, rollout, wheels):
    """By what the runs say and by the clock: the wheels are older than the second run."""
    later = runs[runs.index(rollout) + 1 :]
    assert [builders(run) for run in later] == [[], [], []]  # one more follows the killed ones
    for wheel in wheels:
        assert (wheel["path"] / wheel["file"]).stat().st_mtime < later[0]["started"]


def test_last_rollout_changed_nothing(runs):
    assert runs[-1]["changes"] == []


@pytest.mark.parametrize("name", NAMES)
def test_last_rollout_reached_each_host_with_few_tasks(runs, name):
    """All roles but the benchmark, with nothing to change."""
    reached = [task for host, task in runs[-1]["reached"] if host == name]
    assert 0 < len(reached) <= 12, reached


def test_report_covers_the_fleet(report):
    assert report["schema_version"] == 3
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
