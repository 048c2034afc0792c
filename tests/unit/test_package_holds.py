"""A package that someone else holds is named before anything is changed."""

from __future__ import annotations

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import (
    package_holds as subject,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import packages
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.record import Record
from trees import write

APT = packages.manager("debian")
# As apt 2.6 prints a simulation.
SIMULATED = """Reading package lists...
Inst linux-image-amd64 [6.1.148-1] (6.1.158-1 Debian:12.12/oldstable [amd64]) []
Inst nvidia-driver [570.1-1] (580.1-1 local [all])
Inst firmware (1 local [all])
Remv nvidia-old [470.1-1]
Conf nvidia-driver (580.1-1 local [all])
"""
MADISON = "nvidia-driver | 580.1-1 | file:/srv/bundle ./ Packages\n"
# As dnf 4, dnf 5 and zypper 1.14 print their locks.
DNF4 = "nvidia-driver-3:580.95.05-1.el9.*\nkernel-core-0:5.14.0-570.12.1.el9_6.*\n"
DNF5 = "# Added by 'versionlock add'\nPackage name: kernel-core\nevr = 5.14.0-570.el9\n"
ZYPPER = """
# | Name          | Type    | Repository | Comment
--+---------------+---------+------------+--------
1 | nvidia-open   | package | (any)      |
2 | kernel-default | package | (any)     |
"""


class Host:
    """Answers the package manager's questions, and keeps what was asked."""

    def __init__(self, held, simulated=SIMULATED):
        self.answers = {"showhold": held, "versionlock": held, "locks": held}
        self.answers.update({"-s": simulated, "madison": MADISON})
        self.commands = []

    def __call__(self, command):
        self.commands.append(command)
        found = next((text for word, text in self.answers.items() if word in command), "")
        return 0, found, ""


def refuse(tmp_path, run, simulate=True, wanted=("nvidia-driver=580.1",)):
    have = {"nvidia-driver": "570.1-1", "linux-image-amd64": "6.1.148-1"}
    record = Record(write(tmp_path, {}))
    subject.refuse_installation(APT, record, list(wanted), have, run, simulate)


@pytest.mark.parametrize(
    ("family", "listed", "names"),
    [
        ("debian", "a\nb\n", ["a", "b"]),
        ("redhat", DNF4, ["nvidia-driver", "kernel-core"]),
        ("redhat", DNF5, ["kernel-core"]),
        ("suse", ZYPPER, ["nvidia-open", "kernel-default"]),
    ],
)
def test_each_managers_list_is_read(family, listed, names):
    assert subject.held(packages.manager(family), Host(listed)) == names


def test_a_manager_that_can_not_tell_holds_nothing():
    assert (
        subject.held(packages.manager("redhat"), lambda _command: (1, "", "No such command")) == []
    )


def test_a_held_driver_is_named_with_both_versions(tmp_path):
    with pytest.raises(packages.PackageError) as caught:
        refuse(tmp_path, Host("nvidia-driver\n"))
    assert "nvidia-driver is held at 570.1-1 and would become 580.1-1" in str(caught.value)
    assert "`apt-mark unhold nvidia-driver`" in str(caught.value)
    assert "Nothing was changed." in str(caught.value)


def test_a_held_kernel_that_would_come_along_is_named(tmp_path):
    with pytest.raises(packages.PackageError) as caught:
        refuse(tmp_path, Host("linux-image-amd64\n"))
    assert "linux-image-amd64 is held at 6.1.148-1 and would become 6.1.158-1" in str(caught.value)


def test_a_held_package_that_would_go_is_named(tmp_path):
    with pytest.raises(packages.PackageError, match=r"nvidia-old is held .* would become removed"):
        refuse(tmp_path, Host("nvidia-old\n"))


def test_others_that_stay_as_they_are_do_not_matter(tmp_path):
    refuse(tmp_path, Host("openssh-server\nfirmware\n"))


def test_without_a_simulation_the_named_ones_count(tmp_path):
    refuse(tmp_path, Host("linux-image-amd64\n"), simulate=False)
    with pytest.raises(packages.PackageError, match="nvidia-driver is held"):
        refuse(tmp_path, Host("nvidia-driver\n"), simulate=False)


def test_the_package_manager_is_not_asked_where_nothing_is_held(tmp_path):
    run = Host("")
    refuse(tmp_path, run)
    assert run.commands == [["apt-mark", "showhold"]]


def test_what_a_role_of_ours_holds_may_change(tmp_path):
    record = Record(write(tmp_path, {}))
    record.section("packages")["nvidia_driver"] = {"held": ["nvidia-driver"]}
    have = {"nvidia-driver": "570.1-1"}
    run = Host("nvidia-driver\n")
    subject.refuse_installation(APT, record, ["nvidia-driver=580.1"], have, run, True)


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        ({"remove": ["nvidia-driver"], "restore": []}, "570.1-1 and would become removed"),
        ({"remove": [], "restore": ["nvidia-driver=550.1"]}, "570.1-1 and would become 550.1"),
    ],
)
def test_rollback_asks_too(tmp_path, plan, told):
    record = Record(write(tmp_path, {}))
    have = {"nvidia-driver": "570.1-1"}
    with pytest.raises(packages.PackageError, match=told):
        subject.refuse_removal(APT, record, plan, have, Host("nvidia-driver\n"))
    subject.refuse_removal(APT, record, plan, have, Host("other\n"))
