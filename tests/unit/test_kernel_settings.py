"""Kernel settings: live and at each boot, and back to what they were."""

from __future__ import annotations

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import (
    kernel_settings as subject,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.record import Record
from trees import write

FILE = "/etc/sysctl.d/90-epfleet.conf"
LIVE = "proc/sys/kernel/numa_balancing"


def test_a_setting_is_live_and_comes_back_as_it_was(tmp_path):
    host = write(tmp_path, {LIVE: "1\n"})
    for value in ("2", "0"):
        subject.apply(host, Record(host), FILE, {"kernel.numa_balancing": value})
    assert host.line("/" + LIVE) == "0"
    assert host.text(FILE).splitlines()[-1] == "kernel.numa_balancing = 0"
    subject.restore(host, Record(host), FILE)
    assert host.line("/" + LIVE) == "1"
    assert not host.exists(FILE)
    assert Record(host).data == {"schema": 1}


def test_a_setting_that_the_kernel_lacks_is_named(tmp_path):
    host = write(tmp_path, {})
    with pytest.raises(subject.SettingError, match="numa_balancing"):
        subject.live(host, {"kernel.numa_balancing": "0"})


def test_a_setting_that_is_read_only_is_named(tmp_path):
    host = write(tmp_path, {LIVE + "/not-a-file": ""})
    with pytest.raises(subject.SettingError, match="can't be set"):
        subject._set(host, {"kernel.numa_balancing": "0"})
