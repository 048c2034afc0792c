"""The rules of modprobe.d(5) and of the kernel's parameter parser."""

from __future__ import annotations

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host import modprobe
from trees import OUR_FILE, OUR_LINE, write


def effective(host, command_line=None):
    files = modprobe.config_files(host)
    return modprobe.module_config(files, "nvidia", command_line).effective()


def test_our_file(tmp_path):
    host = write(tmp_path, {OUR_FILE: OUR_LINE + "\n"})
    assert effective(host) == {
        "NVreg_EnableStreamMemOPs": "1",
        "NVreg_RegistryDwords": "PeerMappingOverride=1;",
    }


def test_a_later_file_wins_and_is_named(tmp_path):
    host = write(
        tmp_path,
        {
            OUR_FILE: OUR_LINE + "\n",
            "etc/modprobe.d/zzz.conf": '# x\noptions nvidia NVreg_RegistryDwords="RMForce=1;"\n',
        },
    )
    config = modprobe.module_config(modprobe.config_files(host), "nvidia")
    assert config.effective()["NVreg_RegistryDwords"] == "RMForce=1;"
    last = config.assignments[-1]
    assert (last.source, last.line) == ("/etc/modprobe.d/zzz.conf", 2)


def test_files_are_read_in_order_of_base_name_whatever_their_directory(tmp_path):
    host = write(
        tmp_path,
        {
            "etc/modprobe.d/b.conf": "options nvidia order=b\n",
            "usr/lib/modprobe.d/c.conf": "options nvidia order=c\n",
            "run/modprobe.d/a.conf": "options nvidia order=a\n",
        },
    )
    values = [
        item.value
        for item in modprobe.module_config(modprobe.config_files(host), "nvidia").assignments
    ]
    assert values == ["a", "b", "c"]


def test_a_file_masks_the_same_name_in_a_later_directory(tmp_path):
    host = write(
        tmp_path,
        {
            "etc/modprobe.d/nvidia.conf": "options nvidia ours=1\n",
            "usr/lib/modprobe.d/nvidia.conf": "options nvidia vendor=1\nblacklist nouveau\n",
        },
    )
    assert effective(host) == {"ours": "1"}
    masked = [item for item in modprobe.config_files(host) if item.masked_by]
    assert [(item.path, item.masked_by) for item in masked] == [
        ("/usr/lib/modprobe.d/nvidia.conf", "/etc/modprobe.d/nvidia.conf")
    ]


def test_a_link_to_dev_null_masks_and_a_dangling_link_does_not(tmp_path):
    host = write(
        tmp_path,
        {
            "usr/lib/modprobe.d/null.conf": "options nvidia null=1\n",
            "usr/lib/modprobe.d/gone.conf": "options nvidia gone=1\n",
        },
    )
    (tmp_path / "etc/modprobe.d").mkdir(parents=True)
    (tmp_path / "etc/modprobe.d/null.conf").symlink_to("/dev/null")
    (tmp_path / "etc/modprobe.d/gone.conf").symlink_to("nowhere")
    assert effective(host) == {"gone": "1"}


def test_lib_as_a_link_to_usr_lib_counts_once(tmp_path):
    host = write(tmp_path, {"usr/lib/modprobe.d/nvidia.conf": "options nvidia a=1\n"})
    (tmp_path / "lib").symlink_to("usr/lib")
    assert len(modprobe.config_files(host)) == 1


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("nvidia.conf", True),
        ("a.conf", True),
        ("old.alias", True),
        (".conf", False),
        (".hidden.conf", False),
        ("nvidia.conf.bak", False),
        ("nvidia", False),
        ("nvidia.CONF", False),
    ],
)
def test_which_names_count(tmp_path, name, counts):
    host = write(tmp_path, {f"etc/modprobe.d/{name}": "options nvidia a=1\n"})
    assert bool(effective(host)) is counts


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("options nvidia a=1 \\\n b=2\n", {"a": "1", "b": "2"}),
        ("options nvidia a=1 # why\n", {"a": "1", "#": "", "why": ""}),
        ("# options nvidia a=1\n", {}),
        ("options\tnvidia\ta=1\tb=2\n", {"a": "1", "b": "2"}),
        ("options nvidia-drm modeset=1\n", {}),
        ("options nvidia-current a=1\n", {}),
        ("options nvidia\n", {}),
        ('options nvidia a="x y" b=2\n', {"a": "x y", "b": "2"}),
        ("options nvidia d=A=1;B=2;\n", {"d": "A=1;B=2;"}),
        ("options nvidia a=1 a=2\n", {"a": "2"}),
        ("options nvidia dash-ed=1\n", {"dash_ed": "1"}),
        ("options nvidia a=1", {"a": "1"}),
        ("options nvidia a=1\r\n", {"a": "1"}),
        ("install nvidia /bin/false\n", {}),
        ("", {}),
    ],
)
def test_lines(tmp_path, content, expected):
    assert effective(write(tmp_path, {"etc/modprobe.d/x.conf": content})) == expected


def test_the_kernel_command_line_is_read_last(tmp_path):
    host = write(tmp_path, {OUR_FILE: OUR_LINE + "\n"})
    line = "quiet nvidia.NVreg_EnableStreamMemOPs=0 nvidia-drm.modeset=1 ro"
    assert effective(host, line)["NVreg_EnableStreamMemOPs"] == "0"


def test_rules_about_the_module(tmp_path):
    host = write(
        tmp_path,
        {"etc/modprobe.d/no.conf": "blacklist nvidia\ninstall nvidia /bin/true\nblacklist nouveau"},
    )
    config = modprobe.module_config(
        modprobe.config_files(host), "nvidia", "modprobe.blacklist=nouveau,nvidia"
    )
    assert [(rule.kind, rule.text, rule.source, rule.line) for rule in config.rules] == [
        ("blacklist", "", "/etc/modprobe.d/no.conf", 1),
        ("install", "/bin/true", "/etc/modprobe.d/no.conf", 2),
        ("blacklist", "", "/proc/cmdline", 1),
    ]


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        ("install nvidia modprobe -i nvidia-current $CMDLINE_OPTS", "nvidia-current"),
        ("install nvidia /sbin/modprobe --ignore-install nvidia-tesla-535", "nvidia-tesla-535"),
        ("install nvidia /sbin/modprobe --ignore-install nvidia && true", "nvidia"),
        ("install nvidia-uvm modprobe nvidia ; modprobe -i nvidia-current-uvm", "nvidia"),
        ("install nvidia modprobe -i nvidia; modprobe nvidia-uvm", "nvidia"),
        ("install nvidia /bin/false", "nvidia"),
        ("", "nvidia"),
    ],
)
def test_debian_looks_the_driver_up_by_another_name(tmp_path, rule, name):
    host = write(tmp_path, {"etc/modprobe.d/nvidia.conf": rule + "\n"})
    assert modprobe.driver_module(modprobe.config_files(host)) == name


def test_line_numbers_after_a_continuation():
    assert modprobe.logical_lines("a \\\nb\n\n# c\nd\n") == [(1, "a b"), (5, "d")]


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("1", "0x1", True),
        ("1", "01", False),
        ("1", "2", False),
        (None, "", True),
        ("auto", "auto", True),
    ],
)
def test_same_number(first, second, same):
    assert modprobe.same_value("NVreg_X", first, second) is same


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("PeerMappingOverride=1;", "PeerMappingOverride=1", True),
        ("A=1; B=2", "B=2;A=1;", True),
        ("A=1;", "A=2;", False),
        ("", None, True),
    ],
)
def test_same_registry_entries(first, second, same):
    assert modprobe.same_value("NVreg_RegistryDwords", first, second) is same


def test_an_archive_is_ordered_like_a_tree():
    files = modprobe.order_archive(
        {
            "usr/lib/modprobe.d/n.conf": b"options nvidia vendor=1\n",
            "etc/alternatives/driver.conf": b"options nvidia linked=1\n",
            "etc/modprobe.d/sub/x.conf": b"options nvidia deeper=1\n",
        },
        {
            "etc/modprobe.d/n.conf": "../alternatives/driver.conf",
            "etc/modprobe.d/loop.conf": "loop.conf",
            "etc/modprobe.d/null.conf": "/dev/null",
        },
    )
    config = modprobe.module_config(files, "nvidia")
    assert config.effective() == {"linked": "1"}
    assert [item.path for item in files if item.masked_by] == ["/usr/lib/modprobe.d/n.conf"]
