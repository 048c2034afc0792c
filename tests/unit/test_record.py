"""What rollback goes by: the record of a host before the first change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import record as subject
from trees import write

BOOT = {"proc/sys/kernel/random/boot_id": "aaaa\n"}


def test_a_record_with_nothing_in_it_is_no_file(tmp_path):
    host = write(tmp_path, {})
    record = subject.Record(host)
    record.section("packages")["x"] = {"before": {}}
    record.save()
    assert host.exists(subject.RECORD_FILE)
    del record.section("packages")["x"]
    record.save()
    assert not host.exists(subject.RECORD_FILE)


def test_an_edit_keeps_the_first_state_only(tmp_path):
    host = write(tmp_path, {"etc/x.conf": b"one\xff\n"})
    for content in (b"two\n", b"three\n"):
        subject.edit_file(host, subject.Record(host), "role", "/etc/x.conf", content)
    record = subject.Record(host)
    assert subject.original(record, "/etc/x.conf") == b"one\xff\n"
    assert record.section("files")["/etc/x.conf"]["written"] == subject.digest(b"three\n")


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 99}'])
def test_a_record_that_cannot_be_used_stops_the_run(tmp_path, text):
    host = write(tmp_path, {subject.RECORD_FILE.lstrip("/"): text})
    with pytest.raises(subject.RecordError, match=subject.RECORD_FILE):
        subject.Record(host)


def test_a_boot_is_noted_once(tmp_path):
    host = write(tmp_path, BOOT)
    subject.note_boot(host)
    noted = Path(host.path(subject.CHANGES_FILE)).stat().st_ino
    subject.note_boot(host)
    assert Path(host.path(subject.CHANGES_FILE)).stat().st_ino == noted


def test_what_left_the_command_line_is_known_until_the_next_boot(tmp_path):
    host = write(tmp_path, BOOT)
    subject.note_boot(host, ["NVreg_A"])
    subject.note_boot(host)
    subject.note_boot(host, ["NVreg_B"])
    path = Path(host.path(subject.CHANGES_FILE))
    assert json.loads(path.read_text())["command_line"] == ["NVreg_A", "NVreg_B"]
    write(tmp_path, {"proc/sys/kernel/random/boot_id": "bbbb\n"})
    subject.note_boot(host)
    assert json.loads(path.read_text()) == {"boot_id": "bbbb"}
