"""Which images a host has, and the state of each."""

from __future__ import annotations

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host import (
    initramfs,
    modprobe,
)
from trees import KERNEL, OUR_FILE, OUR_LINE, image, kernel, write

IMAGE = f"boot/initrd.img-{KERNEL}"


def state(tmp_path, content, files=None, require=False, planned=None):
    host = write(tmp_path, {**kernel(), IMAGE: content, **(files or {OUR_FILE: OUR_LINE})})
    (entry,) = initramfs.facts(host, "nvidia", require, planned)
    return entry["state"], entry["evidence"]


def test_an_image_without_the_module_does_not_matter(tmp_path):
    assert state(tmp_path, image(False, None)) == ("not_needed", "no nvidia.ko inside")


def test_options_of_ours_that_were_taken_back_are_stale_without_the_module_too(tmp_path):
    found, evidence = state(tmp_path, image(False, OUR_LINE), {"etc/modprobe.d/x.conf": ""})
    assert found == "stale"
    assert "NVreg_EnableStreamMemOPs, NVreg_RegistryDwords is left over" in evidence


def test_facts_tell_both_whether_options_are_required_or_not(tmp_path):
    for inside, options in ((None, "stale"), (OUR_LINE, "current")):
        host = write(tmp_path, {**kernel(), IMAGE: image(False, inside), OUR_FILE: OUR_LINE})
        (entry,) = initramfs.facts(host, "nvidia", False)
        assert (entry["state"], entry["options"]) == ("not_needed", options)


def test_an_image_with_module_and_options_is_current(tmp_path):
    found, evidence = state(tmp_path, image(True, OUR_LINE))
    assert found == "current"
    assert "nvidia.ko inside" in evidence


@pytest.mark.parametrize(
    ("inside", "words"),
    [
        (None, "NVreg_EnableStreamMemOPs is missing, NVreg_RegistryDwords is missing"),
        ("options nvidia NVreg_EnableStreamMemOPs=1", "NVreg_RegistryDwords is missing"),
        (OUR_LINE.replace("MemOPs=1", "MemOPs=0"), "NVreg_EnableStreamMemOPs is 0 and not 1"),
        (OUR_LINE + " NVreg_Old=3", "NVreg_Old=3 is left over"),
    ],
)
def test_an_image_with_the_module_and_other_options_is_stale(tmp_path, inside, words):
    found, evidence = state(tmp_path, image(True, inside))
    assert found == "stale"
    assert words in evidence


def test_an_old_file_that_sorts_later_inside_makes_it_stale(tmp_path):
    inside = image(True, 'options nvidia NVreg_RegistryDwords="X=1"', "etc/modprobe.d/zzz.conf")
    assert state(tmp_path, inside)[0] == "stale"


def test_required_options_are_looked_for_without_the_module(tmp_path):
    assert state(tmp_path, image(False, None), require=True)[0] == "stale"
    assert state(tmp_path, image(False, OUR_LINE), require=True)[0] == "current"


def test_options_of_a_host_without_any_are_left_over_in_the_image(tmp_path):
    found, evidence = state(tmp_path, image(True, OUR_LINE), files={"etc/x": ""})
    assert found == "stale"
    assert "left over" in evidence


def test_planned_options_stand_for_our_file(tmp_path):
    planned = {"NVreg_EnableStreamMemOPs": "1"}
    content = image(True, "options nvidia NVreg_EnableStreamMemOPs=1")
    assert state(tmp_path, content, planned=planned)[0] == "current"
    assert state(tmp_path, content, planned={})[0] == "stale"


def test_a_damaged_image_is_unknown(tmp_path):
    found, evidence = state(tmp_path, b"junk")
    assert found == "unknown"
    assert "compression" in evidence


@pytest.mark.parametrize(
    "path",
    [
        f"boot/initrd.img-{KERNEL}",
        f"boot/initramfs-{KERNEL}.img",
        f"boot/initrd-{KERNEL}",
        f"boot/0123456789abcdef/{KERNEL}/initrd",
        f"boot/efi/0123456789abcdef/{KERNEL}/initrd",
    ],
)
def test_where_images_are(tmp_path, path):
    host = write(tmp_path, {**kernel(), path: b""})
    assert initramfs.images(host) == [(KERNEL, "/" + path)]


def test_images_of_removed_kernels_and_of_kdump_are_left_alone(tmp_path):
    host = write(
        tmp_path,
        {
            **kernel(),
            "boot/initrd.img-5.10.0": b"",
            f"boot/initramfs-{KERNEL}kdump.img": b"",
            "boot/initramfs-0-rescue-abc.img": b"",
        },
    )
    assert initramfs.images(host) == []


def test_every_installed_kernel_has_its_entry(tmp_path):
    files = {**kernel("1.0"), **kernel("2.0")}
    files["boot/initrd.img-1.0"] = image(True, None)
    files["boot/initrd.img-2.0"] = image(True, OUR_LINE)
    host = write(tmp_path, {**files, OUR_FILE: OUR_LINE})
    entries = initramfs.facts(host, "nvidia", False)
    assert [(item["kernel"], item["state"]) for item in entries] == [
        ("1.0", "stale"),
        ("2.0", "current"),
    ]


@pytest.mark.parametrize(
    ("programs", "expected"),
    [
        (["usr/sbin/mkinitramfs", "usr/sbin/update-initramfs"], "initramfs-tools"),
        # Ubuntu's dracut keeps a wrapper of this name.
        (["usr/sbin/update-initramfs", "usr/bin/dracut"], "dracut"),
        (["usr/bin/dracut"], "dracut"),
        ([], None),
    ],
)
def test_the_tool_is_found_by_its_program(tmp_path, programs, expected):
    assert initramfs.tool(write(tmp_path, dict.fromkeys(programs, ""))) == expected


def test_wanted_is_what_the_files_give_without_the_command_line(tmp_path):
    host = write(tmp_path, {OUR_FILE: OUR_LINE, "proc/cmdline": "nvidia.NVreg_X=1"})
    assert "NVreg_X" not in initramfs.wanted(host, "nvidia")
    assert modprobe.OPTIONS_FILE == "/" + OUR_FILE
