"""What the first rollout left: a driver built here, held, its options in files and images."""

from __future__ import annotations

import json

import pytest
from conftest import BACKENDS, NAMES
from walk import LINE, OPTIONS, image_names, inside_image, kernels, lines

testinfra_hosts = BACKENDS


def test_driver_is_built_for_every_kernel(host):
    for kernel in kernels(host):
        assert host.check_output(f"modinfo -k {kernel} -F version nvidia") == "580.1"
        parameters = host.check_output(f"modinfo -k {kernel} -F parm nvidia")
        assert "NVreg_EnableStreamMemOPs:" in parameters.split()
        assert host.check_output(f"modinfo -k {kernel} -F license nvidia") == "Dual MIT/GPL"


def test_driver_is_held_at_its_version(host):
    assert host.check_output("apt-mark showhold") == "nvidia-standin-dkms"


def test_a_load_would_get_the_options(host):
    assert lines(host.file(OPTIONS).content_string) == [LINE]
    (kernel,) = kernels(host)
    depends = host.check_output(f"modprobe -S {kernel} --show-depends nvidia").splitlines()[-1]
    assert depends.startswith("insmod ")
    assert depends.split()[2:] == LINE.split()[2:]


def test_the_image_holds_driver_and_options(host):
    for kernel in kernels(host):
        assert "/nvidia.ko" in image_names(host, kernel)
        assert inside_image(host, kernel) == [LINE]


def test_record_says_what_came(host):
    record = json.loads(host.file("/var/lib/epfleet/record.json").content_string)
    before = record["packages"]["nvidia_driver"]["before"]
    assert before == {"nvidia-standin-dkms": None, "nvidia-standin-firmware": None}


def test_host_rebooted_once(host, boots):
    assert len(boots) == 2


def test_check_mode_told_what_the_rollout_then_did(runs, rollout):
    assert runs[0]["check"]
    assert sorted(map(tuple, runs[0]["changes"])) == sorted(map(tuple, rollout["changes"]))
    assert {host for host, _task in rollout["changes"]} == set(NAMES)


def test_second_rollout_changed_nothing(runs):
    assert runs[-1]["changes"] == []


@pytest.mark.parametrize("name", NAMES)
def test_second_rollout_cost_little(runs, name):
    reached = [task for host, task in runs[-1]["reached"] if host == name]
    assert 0 < len(reached) <= 12, reached


@pytest.mark.parametrize("name", NAMES)
def test_hosts_rebooted_canary_first(all_boots, name):
    assert all_boots[0][1] <= all_boots[NAMES.index(name)][1]
