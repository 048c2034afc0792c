"""Lines of others that win over ours: named at first, taken over by choice."""

from __future__ import annotations

import pytest
from conftest import BACKENDS
from walk import Run, inside_image, kernels

testinfra_hosts = BACKENDS

SITE = "/etc/modprobe.d/zzz-site.conf"
THEIRS = 'options nvidia NVreg_RegistryDwords="RMForce=1;" NVreg_DmaRemapPeerMmio=0'
TAKE_OVER = {"nvidia_driver_take_over": True}


@pytest.fixture(scope="module")
def refused(request):
    """A run after each host got a file that sorts later than ours."""
    import testinfra

    for backend in BACKENDS:
        host = testinfra.get_host(backend)
        host.check_output(f"printf '%s\\n' '{THEIRS}' > {SITE}")
    return Run("site")


@pytest.fixture(scope="module")
def planned(refused):
    return Run("site", "--check", **TAKE_OVER)


@pytest.fixture(scope="module")
def taken(planned):
    return Run("site", **TAKE_OVER)


def test_the_line_is_named_before_anything_changes(host, refused):
    assert refused.status != 0
    assert refused.changes == []
    assert f"{SITE}:1 sets NVreg_RegistryDwords=RMForce=1;" in refused.message()
    assert "nvidia_driver_take_over" in refused.message()


def test_by_choice_ours_wins_and_their_entries_are_kept(host, taken):
    assert taken.status == 0, taken.output[-3000:]
    shown = host.check_output("modprobe --showconfig").splitlines()
    assert [line for line in shown if "RegistryDwords" in line] == [
        "options nvidia NVreg_EnableStreamMemOPs=1"
        ' NVreg_RegistryDwords="PeerMappingOverride=1;RMForce=1;"'
    ]
    assert "options nvidia NVreg_DmaRemapPeerMmio=0" in shown


def test_their_line_stays_as_a_comment(host, taken):
    first = host.file(SITE).content_string.splitlines()[0]
    assert first == "# taken over by epfleet.expert_parallel: " + THEIRS


def test_the_image_holds_what_a_load_gets(host, taken):
    for kernel in kernels(host):
        (line,) = inside_image(host, kernel)
        assert "RMForce=1" in line
        assert not any("Registry" in text for text in inside_image(host, kernel, SITE))


def test_check_mode_told_it(host, planned, taken):
    assert sorted(planned.changes) == sorted(taken.changes)


@pytest.mark.parametrize("arguments", [["--check"], []])
def test_and_then_nothing_changes(taken, arguments):
    again = Run("site", *arguments, **TAKE_OVER)
    assert again.status == 0, again.output[-3000:]
    assert again.changes == []
