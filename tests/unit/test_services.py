"""Units of others are put in force and put back to what they were."""

from __future__ import annotations

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import services as subject
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.record import Record
from trees import write

UNIT = "nvidia-persistenced.service"


class Manager:
    """Stands for systemd with one unit."""

    def __init__(self, enabled="disabled", active=False, starts=True, stale=False):
        self.enabled, self.active, self.starts = enabled, active, starts
        self.stale = stale  # asked while the unit's file was gone, not reloaded since
        self.commands = []

    def __call__(self, command):
        self.commands.append(command)
        if command[0] == "journalctl":
            return 0, "Failed to query NVIDIA devices.\n\n", ""
        verb = command[1]
        if verb == "show":
            there = "loaded" if self.enabled else "not-found"
            state = "active" if self.active else "inactive"
            file = "bad" if self.stale else self.enabled
            return 0, f"LoadState={there}\nActiveState={state}\nUnitFileState={file}\n", ""
        if verb == "is-enabled":
            return (0 if self.enabled == "enabled" else 1), f"{self.enabled}\n", ""
        if verb in ("enable", "disable"):
            self.enabled, self.stale = verb + "d", False
        elif verb == "stop":
            self.active = False
        elif verb == "start":
            self.active = self.starts
            return (0, "", "") if self.starts else (1, "", "Job failed")
        return 0, "", ""


def put_in_force(host, manager, started=True):
    before = subject.state(UNIT, manager)
    subject.put_in_force(Record(host), "driver", UNIT, before, manager)
    if "start" in subject.lacking(before, started):
        subject.start(UNIT, manager)


@pytest.mark.parametrize(
    ("enabled", "active", "started", "actions"),
    [
        ("disabled", False, True, ["enable", "start"]),
        ("disabled", False, False, ["enable"]),
        ("enabled", False, True, ["start"]),
        ("static", False, True, ["start"]),
        ("static", True, True, []),
        ("enabled", True, True, []),
    ],
)
def test_only_what_lacks_is_done(enabled, active, started, actions):
    before = subject.State(True, enabled, active)
    assert subject.lacking(before, started) == actions


@pytest.mark.parametrize(("enabled", "active"), [("disabled", False), ("enabled", True)])
def test_it_comes_back_to_what_it_was(tmp_path, enabled, active):
    host, manager = write(tmp_path, {}), Manager(enabled, active)
    put_in_force(host, manager)
    assert (manager.enabled, manager.active) == ("enabled", True)
    subject.give_back(Record(host), "driver", manager)
    assert (manager.enabled, manager.active) == (enabled, active)
    assert Record(host).data == {"schema": 1}


@pytest.mark.parametrize(("enabled", "active"), [("disabled", False), ("enabled", True)])
def test_a_unit_whose_package_came_again_is_read_from_its_files(tmp_path, enabled, active):
    host, manager = write(tmp_path, {}), Manager(enabled, active, stale=True)
    assert subject.state(UNIT, manager) == subject.State(True, enabled, active)
    put_in_force(host, manager)
    assert (manager.enabled, manager.active) == ("enabled", True)
    subject.give_back(Record(host), "driver", manager)
    assert (manager.enabled, manager.active) == (enabled, active)


def test_the_first_state_counts_over_several_runs(tmp_path):
    host, manager = write(tmp_path, {}), Manager()
    put_in_force(host, manager, started=False)
    put_in_force(host, manager)
    subject.give_back(Record(host), "driver", manager)
    assert (manager.enabled, manager.active) == ("disabled", False)


def test_a_unit_that_went_with_its_package_is_forgotten(tmp_path):
    host, manager = write(tmp_path, {}), Manager()
    put_in_force(host, manager)
    manager.enabled, manager.active = "", False
    subject.give_back(Record(host), "driver", manager)
    assert Record(host).data == {"schema": 1}
    assert manager.commands[-1][1] == "show"


def test_another_owners_unit_stays(tmp_path):
    host, manager = write(tmp_path, {}), Manager()
    put_in_force(host, manager)
    subject.give_back(Record(host), "other", manager)
    assert manager.enabled == "enabled"


def test_a_unit_that_does_not_start_is_told_with_its_last_words(tmp_path):
    with pytest.raises(subject.ServiceError, match="does not start: Failed to query NVIDIA"):
        put_in_force(write(tmp_path, {}), Manager(starts=False))
