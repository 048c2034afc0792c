"""Taking parameters out of others' files: exactly those, and back again."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import claims as subject
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.record import Record
from trees import write

SITE = "/etc/modprobe.d/zzz-site.conf"
LINE = 'options nvidia NVreg_RegistryDwords="RMForce=1; B=2" NVreg_DmaRemapPeerMmio=1\n'
GRUB = 'GRUB_CMDLINE_LINUX="quiet nvidia.NVreg_RegistryDwords=RMForce=1 iommu=pt"\n'


def claim(source, parameter="NVreg_RegistryDwords"):
    return {"parameter": parameter, "source": source}


def run_nothing(command):
    raise AssertionError(command)


@pytest.mark.parametrize(
    ("line", "rest"),
    [
        (LINE, "options nvidia NVreg_DmaRemapPeerMmio=1\n"),
        ("options nvidia NVreg_RegistryDwords=A=1;\n", ""),
        ("options nvidia A=1 NVreg-RegistryDwords=A=1 B=2\n", "options nvidia A=1 B=2\n"),
        ("options nvidia NVreg_RegistryDwords\n", ""),
    ],
)
def test_only_the_parameter_goes_and_the_line_stays_as_a_comment(line, rest):
    marked = "# taken over by epfleet.expert_parallel: " + line
    assert subject.without(line, "nvidia", ["NVreg_RegistryDwords"]) == marked + rest


@pytest.mark.parametrize(
    "line",
    [
        "options nvidia-drm NVreg_RegistryDwords=A=1\n",
        "options nvidia NVreg_RegistryDwordsPerDevice=x\n",
        "# options nvidia NVreg_RegistryDwords=A=1\n",
        "blacklist nvidia\n",
        "\n",
    ],
)
def test_other_lines_stay(line):
    assert subject.without(line, "nvidia", ["NVreg_RegistryDwords"]) == line


def test_a_line_in_a_form_that_is_not_understood_stops_the_take_over(tmp_path):
    text = "options nvidia \\\n  NVreg_RegistryDwords=A=1\n"
    host = write(tmp_path, {SITE.lstrip("/"): text})
    with pytest.raises(subject.ClaimError, match=SITE):
        subject.plan(host, "nvidia", [claim(SITE)])


def test_files_come_back_byte_for_byte(tmp_path):
    host = write(tmp_path, {SITE.lstrip("/"): LINE})
    Path(host.path(SITE)).chmod(0o640)
    edits = subject.plan(host, "nvidia", [claim(SITE)])
    subject.apply(host, Record(host), "driver", edits, run_nothing)
    assert "RMForce" in host.text(SITE).splitlines()[0]
    record = Record(host)
    subject.restore(host, record, "driver", subject.restorable(host, record, "driver"), run_nothing)
    assert host.text(SITE) == LINE
    assert Path(host.path(SITE)).stat().st_mode & 0o777 == 0o640
    assert subject.restorable(host, Record(host), "driver") == {}


def test_a_file_that_was_changed_since_is_left_alone(tmp_path):
    host = write(tmp_path, {SITE.lstrip("/"): LINE})
    edits = subject.plan(host, "nvidia", [claim(SITE)])
    subject.apply(host, Record(host), "driver", edits, run_nothing)
    write(tmp_path, {SITE.lstrip("/"): "# mine now\n"})
    with pytest.raises(subject.ClaimError, match="changed after"):
        subject.restorable(host, Record(host), "driver")


@pytest.mark.parametrize(
    ("path", "text", "after"),
    [
        ("etc/default/grub", GRUB, 'GRUB_CMDLINE_LINUX="quiet iommu=pt"\n'),
        (
            "etc/default/grub.d/x.cfg",
            'GRUB_CMDLINE_LINUX="nvidia.NVreg_RegistryDwords=\\"A=1;B=2\\""\n',
            'GRUB_CMDLINE_LINUX=""\n',
        ),
        ("etc/kernel/cmdline", "nvidia.NVreg-RegistryDwords=A=1 quiet\n", "quiet\n"),
        (
            "boot/loader/entries/a.conf",
            "options root=x nvidia.NVreg_RegistryDwords=A=1 nvidia.NVreg_Other=1\n",
            "options root=x nvidia.NVreg_Other=1\n",
        ),
    ],
)
def test_boot_loaders_configurations(tmp_path, path, text, after):
    host = write(tmp_path, {path: text})
    edits = subject.plan(host, "nvidia", [claim("/proc/cmdline")])
    assert edits == {f"/{path}": after.encode()}


def test_grub_is_told(tmp_path):
    host = write(tmp_path, {"etc/default/grub": GRUB, "usr/sbin/update-grub": ""})
    ran = []
    edits = subject.plan(host, "nvidia", [claim("/proc/cmdline")])
    subject.apply(host, Record(host), "driver", edits, lambda c: ran.append(c) or (0, "", ""))
    assert ran == [["update-grub"]]


def test_a_command_line_from_somewhere_else_is_named(tmp_path):
    host = write(tmp_path, {"etc/default/grub": "# nvidia.NVreg_RegistryDwords=A=1\n"})
    with pytest.raises(subject.ClaimError, match="boot loader"):
        subject.plan(host, "nvidia", [claim("/proc/cmdline")])
