"""Packages are taken back exactly: what came, and the versions that were changed."""

from __future__ import annotations

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import packages as subject
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.record import Record
from trees import write

TOOLS = subject.manager("debian")
OFFERED = ("580.10-1", "580.1-2", "580.1-1", "580.1", "570.1")


class Dpkg:
    """Stands for a Debian host; ``catalogue`` says what an installation brings."""

    def __init__(self, present, catalogue=None, fails=False, dependents=()):
        self.present, self.catalogue = dict(present), catalogue or {}
        self.fails, self.dependents = fails, list(dependents)
        self.offered = {
            "driver": "".join(
                f"driver | {version} | file:/srv ./ Packages\n" for version in OFFERED
            )
        }
        self.broken: set[str] = set()
        self.commands: list[list[str]] = []

    def __call__(self, command):
        self.commands.append(command)
        if command[0] == "dpkg-query":
            lines = [
                f"{'iF' if name in self.broken else 'hi'} \t{name}\t{version}\n"
                for name, version in self.present.items()
            ]
            return 0, "".join([*lines, "rc \told\t1\n"]), ""
        if command[0] == "apt-cache":
            return 0, self.offered.get(command[-1], ""), ""
        words = [word for word in command if not word.startswith("-")]
        if "-s" in command:
            gone = [*command[command.index("purge") + 1 :], *self.dependents]
            return 0, "".join(f"Purg {name} [1]\n" for name in gone), ""
        if "install" in words:
            for item in words[words.index("install") + 1 :]:
                name, _equals, version = item.partition("=")
                self.present[name] = version or "1"
                self.present.update(self.catalogue.get(name, {}))
                if self.fails:
                    self.broken.add(name)
        elif "purge" in words:
            for name in words[words.index("purge") + 1 :]:
                del self.present[name]
        return (100, "", "E: it broke") if self.fails else (0, "", "")


def take_back(host, dpkg, owner="driver"):
    record = Record(host)
    plan = subject.removal(TOOLS, record, owner, dpkg)
    subject.take_back(TOOLS, record, owner, plan, dpkg)


@pytest.mark.parametrize(
    ("wanted", "lacking"),
    [
        (["a"], []),
        (["a=1.2"], []),
        (["a=1.2-3"], []),
        (["a=1"], ["a=1"]),
        (["a=1.20"], ["a=1.20"]),
        (["b", "a"], ["b"]),
    ],
)
def test_a_version_is_satisfied_by_any_revision_of_it(wanted, lacking):
    assert subject.missing(wanted, {"a": "1.2-3"}) == lacking


@pytest.mark.parametrize(
    ("item", "chosen"),
    [
        ("driver", "driver"),
        ("driver=570.1", "driver=570.1"),
        ("driver=580.10", "driver=580.10-1"),
        ("driver=580.1", "driver=580.1-2"),
    ],
)
def test_the_newest_revision_of_a_version_is_asked_for(item, chosen):
    assert subject.exact(TOOLS, item, Dpkg({})) == chosen


def test_a_version_that_no_repository_has_is_named_with_those_that_there_are(tmp_path):
    dpkg = Dpkg({})
    with pytest.raises(subject.PackageError, match=r"driver 560 is in no repository .* 580.10-1"):
        subject.install(TOOLS, Record(write(tmp_path, {})), "driver", ["driver=560"], dpkg)
    assert [command[0] for command in dpkg.commands] == ["apt-cache"]


def test_a_package_whose_place_is_taken_comes_back(tmp_path):
    host = write(tmp_path, {})
    dpkg = Dpkg({"manager-570": "570.1"})

    def replacing(command):
        answer = dpkg(command)
        if "install" in command:
            del dpkg.present["manager-570"]
        return answer

    subject.install(TOOLS, Record(host), "driver", ["manager"], replacing)
    take_back(host, dpkg)
    assert dpkg.present == {"manager-570": "570.1"}


def test_dependencies_go_and_upgrades_are_undone(tmp_path):
    host = write(tmp_path, {})
    first = {"base": "1", "library": "1"}
    dpkg = Dpkg(first, {"driver": {"firmware": "1", "library": "2"}})
    subject.install(TOOLS, Record(host), "driver", ["driver=580.1"], dpkg)
    subject.hold(TOOLS, Record(host), "driver", ["driver"], dpkg)
    assert dpkg.present == {"base": "1", "library": "2", "driver": "580.1-2", "firmware": "1"}
    take_back(host, dpkg)
    assert dpkg.present == first
    assert ["apt-mark", "unhold", "driver"] in dpkg.commands
    assert Record(host).data == {"schema": 1}


def test_several_upgrades_lead_back_to_the_first_version(tmp_path):
    host = write(tmp_path, {})
    dpkg = Dpkg({"driver": "550.1"})
    for version in ("570.1", "580.1"):
        subject.install(TOOLS, Record(host), "driver", [f"driver={version}"], dpkg)
    take_back(host, dpkg)
    assert dpkg.present == {"driver": "550.1"}


def test_what_a_failed_installation_left_is_ours_too(tmp_path):
    host = write(tmp_path, {})
    dpkg = Dpkg({"base": "1"}, {"driver": {"firmware": "1"}}, fails=True)
    with pytest.raises(subject.PackageError, match="E: it broke"):
        subject.install(TOOLS, Record(host), "driver", ["driver"], dpkg)
    assert subject.missing(["driver"], subject.installed(TOOLS, dpkg)) == ["driver"]
    dpkg.fails = False
    take_back(host, dpkg)
    assert dpkg.present == {"base": "1"}


def test_what_a_killed_run_brought_is_ours_too(tmp_path):
    host = write(tmp_path, {})
    dpkg = Dpkg({"base": "1"})

    def killed(command):
        dpkg(command)
        if "install" in command:
            raise KeyboardInterrupt
        return dpkg(command)

    with pytest.raises(KeyboardInterrupt):
        subject.install(TOOLS, Record(host), "driver", ["driver"], killed)
    take_back(host, dpkg)
    assert dpkg.present == {"base": "1"}


def test_a_package_that_two_roles_brought_stays_until_both_are_gone(tmp_path):
    host = write(tmp_path, {})
    dpkg = Dpkg({}, {"driver": {"dkms": "3"}})
    subject.install(TOOLS, Record(host), "driver", ["driver"], dpkg)
    record = Record(host)
    record.section("packages")["gdrcopy"] = {"before": {"dkms": None}}
    record.save()
    take_back(host, dpkg)
    assert dpkg.present == {"dkms": "3"}
    take_back(host, dpkg, "gdrcopy")
    assert dpkg.present == {}


def test_nothing_of_others_is_removed(tmp_path):
    host = write(tmp_path, {})
    dpkg = Dpkg({}, dependents=["their-tool"])
    subject.install(TOOLS, Record(host), "driver", ["driver"], dpkg)
    with pytest.raises(subject.PackageError, match="their-tool"):
        subject.removal(TOOLS, Record(host), "driver", dpkg)
    assert dpkg.present == {"driver": "1"}


def test_an_unknown_family_is_named():
    with pytest.raises(subject.PackageError, match="arch"):
        subject.manager("arch")
