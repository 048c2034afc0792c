"""Rollback: every host is again what it was before the first rollout."""

from __future__ import annotations

import subprocess

import pytest
from conftest import BACKENDS, INVENTORY, RESULTS, SCENARIO
from test_2_conflict import SITE, THEIRS
from walk import ENVIRONMENT, OPTIONS, Run, image_names, inside_image, kernels

testinfra_hosts = BACKENDS


@pytest.fixture(scope="module")
def planned():
    return Run("rollback", "--check", skip="none")


@pytest.fixture(scope="module")
def back(planned):
    run = Run("rollback", skip="none")
    assert run.status == 0, run.output[-3000:]
    command = ["ansible-playbook", f"--inventory={INVENTORY}", str(SCENARIO / "after.yml")]
    subprocess.run(command, check=True, env=ENVIRONMENT, capture_output=True)
    return run


def manifest(name, host):
    return set((RESULTS / f"{name}-{host.backend.host}").read_text().splitlines())


def test_host_is_what_it_was(host, back):
    """But for the file that its administrator wrote since; that one is whole again."""
    origin, after = manifest("origin", host), manifest("after", host)
    assert [line for line in sorted(after ^ origin) if SITE not in line] == []
    assert host.file(SITE).content_string == THEIRS + "\n"


def test_nothing_of_ours_is_left(host, back):
    assert not host.file("/var/lib/epfleet").exists
    assert not host.file(OPTIONS).exists
    assert host.check_output("apt-mark showhold") == ""


def test_images_hold_neither_driver_nor_options(host, back):
    for kernel in kernels(host):
        assert inside_image(host, kernel) is None
        assert "/nvidia.ko" not in image_names(host, kernel)


def test_check_mode_told_it(back, planned):
    assert sorted(planned.changes) == sorted(back.changes)


def test_a_second_rollback_changes_nothing(back):
    again = Run("rollback", skip="none")
    assert again.status == 0, again.output[-3000:]
    assert again.changes == []
