"""What follows from facts: the option file, the mode, the reboot."""

from __future__ import annotations

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import decisions
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host import facts
from trees import KERNEL, OUR_FILE, OUR_LINE, gpu, image, kernel, loaded, write

OPTIONS = {"EnableStreamMemOPs": 1}
DWORDS = {"PeerMappingOverride": 1}
CONTENT = (
    "# Managed by the epfleet.expert_parallel collection; changes here are overwritten.\n"
    + OUR_LINE
    + "\n"
)
BOOT = {"proc/sys/kernel/random/boot_id": "this-boot\n"}
CHANGED = {"var/lib/epfleet/changes.json": '{"boot_id": "this-boot"}'}
CHANGED_BEFORE = {"var/lib/epfleet/changes.json": '{"boot_id": "boot-before"}'}
LIVE = loaded("1", "PeerMappingOverride=1;")


def gather(tmp_path, *trees):
    files = {}
    for tree in trees:
        files.update(tree)
    write(tmp_path, files)
    return facts.gather(str(tmp_path), False, "/opt/epfleet/nvshmem")


def plan(found, options=None, dwords=None, take_over=False):
    return decisions.driver_plan(
        found,
        OPTIONS if options is None else options,
        DWORDS if dwords is None else dwords,
        take_over,
    )


def test_the_file_for_an_untouched_host(tmp_path):
    found = plan(gather(tmp_path))
    assert found["content"] == CONTENT
    assert found["problems"] == []
    assert (found["current"], found["would_load"], found["live"]) == (False, False, "unknown")


def test_a_host_with_our_file(tmp_path):
    found = plan(gather(tmp_path, {OUR_FILE: CONTENT}, loaded()))
    assert (found["current"], found["would_load"], found["live"]) == (True, True, "no")


def test_a_host_with_live_options(tmp_path):
    assert plan(gather(tmp_path, {OUR_FILE: CONTENT}, LIVE))["live"] == "yes"


def test_more_registry_entries_than_ours_are_as_good(tmp_path):
    found = gather(tmp_path, loaded("1", "X=2;PeerMappingOverride=1"))
    assert plan(found)["live"] == "yes"


def test_the_same_line_of_someone_else_is_no_problem(tmp_path):
    assert plan(gather(tmp_path, {"etc/modprobe.d/nvidia.conf": OUR_LINE}))["problems"] == []


THEIRS = 'options nvidia NVreg_RegistryDwords="RMForce=1;RMOther=2" NVreg_EnableStreamMemOPs=0\n'


def test_someone_elses_line_is_named(tmp_path):
    problems = plan(gather(tmp_path, {"etc/modprobe.d/nvidia.conf": THEIRS}))["problems"]
    assert len(problems) == 2
    assert all("/etc/modprobe.d/nvidia.conf:1 sets NVreg_" in text for text in problems)
    assert all("nvidia_driver_take_over" in text for text in problems)


def test_taking_over_carries_the_entries_of_others(tmp_path):
    found = gather(tmp_path, {"etc/modprobe.d/nvidia.conf": THEIRS})
    taken = plan(found, take_over=True)
    assert taken["problems"] == []
    assert '"PeerMappingOverride=1;RMForce=1;RMOther=2;"' in taken["content"]
    again = gather(tmp_path, {OUR_FILE: taken["content"]})
    second = plan(again, take_over=True)
    assert (second["current"], second["would_load"]) == (True, True)


def test_our_value_of_a_shared_entry_wins_a_take_over(tmp_path):
    theirs = 'options nvidia NVreg_RegistryDwords="PeerMappingOverride=0"\n'
    found = gather(tmp_path, {"etc/modprobe.d/nvidia.conf": theirs})
    assert plan(found)["problems"]
    assert plan(found, take_over=True)["content"] == CONTENT


READ_LATER = [
    ({"etc/modprobe.d/zzz.conf": THEIRS}, "/etc/modprobe.d/zzz.conf"),
    ({"proc/cmdline": "nvidia.NVreg_RegistryDwords=RMForce=1"}, "/proc/cmdline"),
]


@pytest.mark.parametrize(("tree", "where"), READ_LATER)
def test_what_is_read_after_us_is_named(tmp_path, tree, where):
    problems = plan(gather(tmp_path, tree))["problems"]
    assert problems
    assert all(text.startswith(where + ":1") and "remove it there" in text for text in problems)


@pytest.mark.parametrize(("tree", "where"), READ_LATER)
def test_what_is_read_after_us_is_claimed_by_choice(tmp_path, tree, where):
    taken = plan(gather(tmp_path, tree), take_over=True)
    assert taken["problems"] == []
    assert {claim["source"] for claim in taken["claims"]} == {where}
    assert "NVreg_RegistryDwords" in {claim["parameter"] for claim in taken["claims"]}
    assert "RMForce=1" in taken["content"]


def test_entries_of_claimed_lines_stay_when_the_lines_are_gone(tmp_path):
    taken = plan(gather(tmp_path, READ_LATER[0][0]), take_over=True)
    (tmp_path / "etc/modprobe.d/zzz.conf").unlink()
    again = plan(gather(tmp_path, {OUR_FILE: taken["content"]}), take_over=True)
    assert (again["content"], again["current"]) == (taken["content"], True)


def test_a_command_line_counts_as_it_will_be_at_the_next_boot(tmp_path):
    tree = {
        "proc/cmdline": "nvidia.NVreg_RegistryDwords=RMForce=1",
        OUR_FILE: CONTENT,
        **loaded("1", "RMForce=1"),
        "proc/sys/kernel/random/boot_id": "this-boot\n",
        "var/lib/epfleet/changes.json": '{"boot_id": "this-boot", "command_line":'
        ' ["NVreg_RegistryDwords"]}',
    }
    found = gather(tmp_path, tree)
    assert (plan(found)["would_load"], plan(found)["problems"]) == (True, [])
    assert decisions.reboot_need(found, "gpu", "when_needed")["needed"]
    # The boot that should have been without it still has it: that is no longer excused.
    found = gather(tmp_path, {"proc/sys/kernel/random/boot_id": "next-boot\n"})
    assert plan(found)["problems"]


def test_a_driver_of_another_version_than_the_installed_one_needs_a_boot(tmp_path):
    found = gather(tmp_path, LIVE, BOOT, {OUR_FILE: CONTENT})
    found["kernel"]["next"] = {"release": KERNEL, "evidence": ""}
    for version, needed in ((found["nvidia"]["version"], False), ("999.1", True)):
        module = {"version": version, "path": "/nvidia.ko", "signed": False}
        found["modules"]["installed"] = {KERNEL: {"nvidia": module}}
        need = decisions.reboot_need(found, "cpu", "when_needed")
        assert need["needed"] is needed, need


@pytest.mark.parametrize(
    ("secure_boot", "signed", "named"),
    [(True, False, True), (True, True, False), (False, False, False), (None, False, False)],
)
def test_an_unsigned_module_matters_where_the_firmware_looks(tmp_path, secure_boot, signed, named):
    found = gather(tmp_path)
    found["secure_boot"] = secure_boot
    module = {"version": "1", "path": "/lib/nvidia.ko", "signed": signed}
    found["modules"]["installed"] = {KERNEL: {"nvidia": module}}
    assert decisions.unsigned_modules(found) == (["/lib/nvidia.ko"] if named else [])


def test_a_rule_that_keeps_the_driver_from_loading_is_named(tmp_path):
    found = gather(tmp_path, {"etc/modprobe.d/no.conf": "install nvidia /bin/false\n"})
    assert "/etc/modprobe.d/no.conf:1" in plan(found)["problems"][0]


def test_a_rule_that_loads_the_driver_is_no_problem(tmp_path):
    rule = "install nvidia /sbin/modprobe --ignore-install nvidia && /bin/true\n"
    assert plan(gather(tmp_path, {"etc/modprobe.d/yes.conf": rule}))["problems"] == []


@pytest.mark.parametrize(
    ("options", "dwords", "words"),
    [
        ({"RegistryDwords": "x"}, {}, "nvidia_driver_registry_dwords"),
        ({"A": 'x" b=1'}, {}, "nvidia_driver_options"),
        ({"A\nB": 1}, {}, "nvidia_driver_options"),
        ({"A": ""}, {}, "nvidia_driver_options"),
        ({}, {"A": "1;B=2"}, "nvidia_driver_registry_dwords"),
    ],
)
def test_entries_that_cannot_stand_in_the_file(tmp_path, options, dwords, words):
    problems = plan(gather(tmp_path), options, dwords)["problems"]
    assert any(words in text for text in problems)


def test_debians_name_of_the_driver(tmp_path):
    rule = {
        "etc/modprobe.d/nvidia.conf": "install nvidia modprobe -i nvidia-current $CMDLINE_OPTS\n"
    }
    content = plan(gather(tmp_path, rule))["content"]
    assert content == CONTENT.replace("options nvidia ", "options nvidia-current ")
    found = plan(gather(tmp_path, {OUR_FILE: content}))
    assert (found["current"], found["would_load"]) == (True, True)
    left = gather(tmp_path, {OUR_FILE: CONTENT})
    assert plan(left)["current"] is False


def test_no_options_mean_no_file(tmp_path):
    found = plan(gather(tmp_path, {OUR_FILE: CONTENT}, LIVE), {}, {})
    assert (found["content"], found["current"]) == (None, False)
    assert found["planned"]["reload"] is True
    assert plan(gather(tmp_path / "bare"), {}, {})["current"] is True


def test_booleans_are_numbers_for_the_driver(tmp_path):
    assert "NVreg_A=1\n" in plan(gather(tmp_path), {"A": True}, {})["content"]


def need(found, policy="when_needed", mode="gpu", planned=None):
    return decisions.reboot_need(found, mode, policy, planned)


def test_a_driver_loaded_before_the_file_needs_a_reboot(tmp_path):
    found = need(gather(tmp_path, {OUR_FILE: CONTENT}, loaded(), BOOT))
    assert (found["needed"], found["due"]) == (True, True)
    assert "EnableStreamMemOPs is 0 in the loaded driver, 1 at its next load" in found["reasons"]


def test_never_still_says_that_it_is_needed(tmp_path):
    found = need(gather(tmp_path, {OUR_FILE: CONTENT}, loaded(), BOOT), "never")
    assert (found["needed"], found["due"]) == (True, False)


@pytest.mark.parametrize("policy", ["never", "when_needed", "always"])
def test_live_options_need_no_reboot(tmp_path, policy):
    found = need(gather(tmp_path, {OUR_FILE: CONTENT}, LIVE, BOOT, CHANGED_BEFORE), policy)
    assert (found["needed"], found["due"]) == (False, False)


def test_a_host_without_the_driver_reboots_only_by_policy_and_once(tmp_path):
    written = gather(tmp_path, {OUR_FILE: CONTENT}, BOOT, CHANGED)
    assert need(written)["due"] is False
    assert need(written, "always")["due"] is True
    assert need(written, "always")["needed"] is False
    rebooted = gather(tmp_path, CHANGED_BEFORE)
    assert need(rebooted, "always")["due"] is False


def test_a_file_without_a_record_counts_as_changed_in_this_boot(tmp_path):
    assert need(gather(tmp_path, {OUR_FILE: CONTENT}, BOOT), "always")["due"] is True


def test_an_untouched_host_is_not_rebooted(tmp_path):
    assert need(gather(tmp_path, loaded(), BOOT), "always")["due"] is False


def test_removed_options_need_a_reboot_while_the_driver_is_loaded(tmp_path):
    found = gather(tmp_path, LIVE, BOOT, CHANGED)
    assert need(found)["needed"] is True
    assert need(found, mode="cpu")["needed"] is True
    assert need(gather(tmp_path / "next", LIVE, BOOT, CHANGED_BEFORE))["needed"] is False


def test_only_mode_gpu_needs_the_options_live(tmp_path):
    found = gather(tmp_path, {OUR_FILE: CONTENT}, loaded(), BOOT, CHANGED_BEFORE)
    assert need(found, mode="cpu")["needed"] is False


def test_check_mode_tells_of_the_reboot_to_come(tmp_path):
    found = gather(tmp_path, loaded(), BOOT)
    planned = plan(found)["planned"]
    assert need(found, planned=planned)["due"] is True
    bare = gather(tmp_path / "bare", BOOT)
    assert need(bare, planned=plan(bare)["planned"])["due"] is False
    assert need(bare, "always", planned=plan(bare)["planned"])["due"] is True


@pytest.mark.parametrize(
    ("trees", "requested", "policy", "hosts", "mode"),
    [
        ((), "auto", "when_needed", 3, "reference"),
        ((), "gpu", "when_needed", 3, "gpu"),
        ((), "off", "when_needed", 3, "off"),
        ((gpu(),), "auto", "when_needed", 3, "gpu"),
        ((gpu(),), "auto", "always", 1, "off"),
        ((gpu(), loaded()), "auto", "never", 2, "cpu"),
        ((gpu(), LIVE), "auto", "never", 2, "gpu"),
        ((gpu(), loaded()), "gpu", "never", 2, "gpu"),
    ],
)
def test_mode(tmp_path, trees, requested, policy, hosts, mode):
    assert decisions.resolve_mode(gather(tmp_path, *trees), requested, policy, hosts) == mode


def test_stale_images_are_told_by_kernel(tmp_path):
    found = gather(
        tmp_path, kernel(), {f"boot/initrd.img-{KERNEL}": image(True, None), OUR_FILE: CONTENT}
    )
    (sentence,) = decisions.stale_images(found)
    assert sentence.startswith(f"kernel {KERNEL}: /boot/initrd.img-{KERNEL} (")


def test_only_the_image_of_the_next_boot_keeps_from_it(tmp_path):
    older = "6.1.0-9-amd64"
    trees = [kernel(), kernel(older), {OUR_FILE: CONTENT}]
    trees += [{f"boot/vmlinuz-{name}": "" for name in (KERNEL, older)}]
    stale, current = image(True, None), image(True, CONTENT)
    images = {f"boot/initrd.img-{KERNEL}": current, f"boot/initrd.img-{older}": stale}
    assert decisions.stale_images(gather(tmp_path / "newest", *trees, images)) == []
    grub = {"boot/grub/grubenv": f"next_entry=Debian, with Linux {older}\n"}
    (sentence,) = decisions.stale_images(gather(tmp_path / "older", *trees, images, grub))
    assert sentence.startswith(f"kernel {older}: ")
    grub = {"boot/grub/grubenv": "next_entry=3\n"}
    assert len(decisions.stale_images(gather(tmp_path / "unknown", *trees, images, grub))) == 1
