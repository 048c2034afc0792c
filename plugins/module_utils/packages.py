# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Installing distribution packages so that they can be taken back.

The package managers are run by their command lines: Ansible's own module needs Python bindings on
the host, which it installs by itself and which no rollback would know of.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from contextlib import contextmanager
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Tuple,
)

if TYPE_CHECKING:
    from ansible_collections.epfleet.expert_parallel.plugins.module_utils.record import Record

RunCommand = Callable[[List[str]], Tuple[int, str, str]]


class PackageError(Exception):
    """What could not be installed or removed, with the package manager's own words."""


class Manager(NamedTuple):
    """The command lines of one family of distributions; package names are appended."""

    query: List[str]
    install: List[str]
    simulate_install: Optional[List[str]]
    offered: Optional[List[str]]
    remove: List[str]
    simulate_removal: Optional[List[str]]
    hold: List[str]
    unhold: List[str]
    held: List[str]
    pin: str


_APT = ["apt-get", "-y", "-q", "-o", "Dpkg::Options::=--force-confold"]
_HELD = ["--allow-change-held-packages"]
# A simulation must not write the caches anew either: check mode changes no file.
_APT_DRY = ["-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache="]
_APT_INSTALL = ["--no-install-recommends", "--allow-downgrades", *_HELD, "install"]
MANAGERS = {
    "debian": Manager(
        [
            "dpkg-query",
            "--show",
            "--showformat=${db:Status-Abbrev}\t${Package}\t${Version}\n",
        ],
        [*_APT, *_APT_INSTALL],
        ["apt-get", "-s", "-q", *_APT_DRY, *_APT_INSTALL],
        ["apt-cache", *_APT_DRY, "madison"],
        [*_APT, *_HELD, "purge"],
        ["apt-get", "-s", "-q", *_APT_DRY, *_HELD, "purge"],
        ["apt-mark", "hold"],
        ["apt-mark", "unhold"],
        ["apt-mark", "showhold"],
        "=",
    ),
    "redhat": Manager(
        ["rpm", "-qa", "--queryformat=ii\t%{NAME}\t%{VERSION}-%{RELEASE}\n"],
        ["dnf", "-y", "-q", "install"],
        None,
        None,
        ["dnf", "-y", "-q", "remove", "--noautoremove"],
        None,
        ["dnf", "-q", "versionlock", "add"],
        ["dnf", "-q", "versionlock", "delete"],
        ["dnf", "-q", "versionlock", "list"],
        "-",
    ),
    "suse": Manager(
        ["rpm", "-qa", "--queryformat=ii\t%{NAME}\t%{VERSION}-%{RELEASE}\n"],
        ["zypper", "--non-interactive", "--quiet", "install", "--oldpackage", "--no-recommends"],
        None,
        None,
        ["zypper", "--non-interactive", "--quiet", "remove"],
        None,
        ["zypper", "--non-interactive", "--quiet", "addlock"],
        ["zypper", "--non-interactive", "--quiet", "removelock"],
        ["zypper", "--non-interactive", "--quiet", "locks"],
        "=",
    ),
}


_NAME = re.compile(r"[A-Za-z0-9@/][^\s\x00-\x1f]*\Z")


def manager(family: Optional[str]) -> Manager:
    """The package manager of an OS family; raises PackageError for one that is not known."""
    if family not in MANAGERS:
        raise PackageError(
            f"No package manager is known for this host (family {family}); install the packages"
            " by hand, then run again."
        )
    return MANAGERS[family]


def installed(tools: Manager, run: RunCommand, half: bool = False) -> Dict[str, str]:
    """``{name: version}`` of every installed package; ``half`` counts broken installations too."""
    code, output, errors = run(tools.query)
    if code != 0:
        raise PackageError(f"`{' '.join(tools.query)}` failed with {code}: {errors.strip()}")
    found = {}
    for line in output.splitlines():
        status, name, version = [*line.split("\t"), "", ""][:3]
        # dpkg's second letter: i is installed, n is not, c has its configuration files left.
        if status[1:2] == "i" or (half and status[1:2] not in ("n", "c")):
            found[name] = version
    return found


def missing(wanted: List[str], present: Dict[str, str]) -> List[str]:
    """The entries of ``wanted`` (``NAME`` or ``NAME=VERSION``) that ``present`` does not satisfy.

    A version without the distribution's revision is satisfied by any revision of it. Raises
    PackageError for what a package manager could take for an option: some of those run programs.
    """
    for item in wanted:
        if not _NAME.match(item):
            raise PackageError(f"{item!r} is no name of a package.")
    lacking = []
    for item in wanted:
        name, equals, version = item.partition("=")
        have = present.get(name)
        if have is None or (equals and not _is(have, version)):
            lacking.append(item)
    return lacking


def _is(have: str, version: str) -> bool:
    return have == version or have.startswith(version + "-")


def exact(tools: Manager, item: str, run: RunCommand) -> str:
    """``NAME=VERSION`` with the revision that the repositories have, which apt must be told.

    Raises PackageError, with the versions that there are, when none is that one.
    """
    name, equals, version = item.partition("=")
    if not equals or tools.offered is None:
        return item
    _code, output, _errors = run([*tools.offered, name])
    there = [line.split("|")[1].strip() for line in output.splitlines() if line.count("|") == 2]
    chosen = next((each for each in there if _is(each, version)), None)
    if chosen is None:
        raise PackageError(
            f"{name} {version} is in no repository of this host, which has"
            f" {', '.join(dict.fromkeys(there)) or 'no version of it'}. Add the repository that"
            " has it, or ask for a version that is there."
        )
    return f"{name}={chosen}"


@contextmanager
def with_repository(tools: Manager, repository: str, run: RunCommand) -> Iterator[Manager]:
    """``tools`` that also know ``repository``, a folder or URL; the host's own lists stay.

    A folder or URL of an apt repository is flat: packages and ``Packages`` in one place.
    """
    if not repository:
        yield tools
    elif tools.install[0] == "apt-get":
        directory = tempfile.mkdtemp(prefix="epfleet-apt-")
        try:
            yield _with_apt_repository(tools, repository, directory, run)
        finally:
            shutil.rmtree(directory)
    elif tools.install[0] == "dnf":
        extra = [f"--repofrompath=epfleet,{_url(repository)}", "--setopt=epfleet.gpgcheck=0"]
        yield tools._replace(install=["dnf", *extra, *tools.install[1:]])
    else:
        extra = ["--no-gpg-checks", f"--plus-repo={_url(repository)}"]
        yield tools._replace(install=["zypper", *extra, *tools.install[1:]])


def _with_apt_repository(
    tools: Manager, repository: str, directory: str, run: RunCommand
) -> Manager:
    os.chmod(directory, 0o755)  # apt's own user reads it
    ours = os.path.join(directory, "epfleet-ours.list")
    with open(ours, "w", encoding="utf-8") as stream:
        stream.write(f"deb [trusted=yes] {_url(repository)} ./\n")
    only_ours = ["-o", f"Dir::Etc::sourcelist={ours}", "-o", "Dir::Etc::sourceparts=/dev/null"]
    # Without the clean-up the indexes of the host's other repositories stay.
    _must(run, ["apt-get", "-q", *only_ours, "-o", "APT::Get::List-Cleanup=0", "update"])
    parts = "/etc/apt/sources.list.d"
    for name in os.listdir(parts) if os.path.isdir(parts) else ():
        os.symlink(os.path.join(parts, name), os.path.join(directory, name))
    if os.path.exists("/etc/apt/sources.list"):
        os.symlink("/etc/apt/sources.list", os.path.join(directory, "epfleet-main.list"))
    lists = ["-o", "Dir::Etc::sourcelist=/dev/null", "-o", f"Dir::Etc::sourceparts={directory}"]
    ours_too = {
        field: [command[0], *lists, *command[1:]]
        for field, command in (
            ("install", tools.install),
            ("simulate_install", tools.simulate_install),
            ("offered", tools.offered),
        )
        if command
    }
    return tools._replace(**ours_too)


def _url(repository: str) -> str:
    if re.search(r"[\s\x00-\x1f]", repository):
        raise PackageError(f"{repository!r} is no address of a repository: it has a blank.")
    return "file:" + repository if repository.startswith("/") else repository


def install(
    tools: Manager, record: Record, owner: str, wanted: List[str], run: RunCommand
) -> Dict[str, Optional[str]]:
    """Install ``wanted`` for ``owner``; returns ``{name: version before, None when absent}``.

    The packages of before are in the record while the package manager works, so that what a killed
    run brought is still known for ours.
    """
    names = [exact(tools, item, run).replace("=", tools.pin, 1) for item in wanted]
    entry = _entry(record, owner)
    entry.setdefault("pending", installed(tools, run, half=True))
    record.save()
    code, output, errors = run([*tools.install, *names])
    changes = _settle(entry, installed(tools, run, half=True))
    record.save()
    if code != 0:
        raise PackageError(
            f"Installing {', '.join(wanted)} failed with exit code {code}:"
            f" {_last_words(errors, output)}"
        )
    return changes


def hold(tools: Manager, record: Record, owner: str, names: List[str], run: RunCommand) -> None:
    """Keep ``names`` at their versions, so that no unattended upgrade changes them."""
    entry = _entry(record, owner)
    entry["held"] = sorted({*entry.get("held", []), *names})
    record.save()
    _must(run, [*tools.hold, *names])


def removal(tools: Manager, record: Record, owner: str, run: RunCommand) -> Dict[str, List[str]]:
    """What taking back ``owner``'s packages means: ``{"remove": names, "restore": NAME=VERSION}``.

    Raises PackageError when a package that is not ours would have to go with them.
    """
    entry = record.section("packages").get(owner)
    if not entry:
        return {"remove": [], "restore": []}
    present = installed(tools, run, half=True)
    _settle(entry, present)
    others = [part for name, part in record.section("packages").items() if name != owner]
    shared = {name for part in others for name in part.get("before", {})}
    remove, restore = [], []
    for name, version in sorted(entry["before"].items()):
        if name in shared:
            continue
        if version is None and name in present:
            remove.append(name)
        elif version is not None and present.get(name) != version:
            restore.append(f"{name}={version}")
    if remove and tools.simulate_removal:
        code, output, errors = run([*tools.simulate_removal, *remove])
        if code != 0:
            raise PackageError(f"{', '.join(remove)} can't be removed: {errors.strip()}")
        gone = [line.split()[1] for line in output.splitlines() if line.startswith("Purg ")]
        more = sorted({name.partition(":")[0] for name in gone} - set(remove))
        if more:
            raise PackageError(
                f"Removing {', '.join(remove)} would also remove {', '.join(more)}, which these"
                " roles did not install; remove those first if they may go, then run again."
            )
    return {"remove": remove, "restore": restore}


def take_back(
    tools: Manager, record: Record, owner: str, plan: Dict[str, List[str]], run: RunCommand
) -> None:
    """Carry out a plan of ``removal`` and forget ``owner``."""
    entry = record.section("packages").get(owner, {})
    if entry.get("held"):
        _must(run, [*tools.unhold, *entry["held"]])
    if plan["remove"]:
        _must(run, [*tools.remove, *plan["remove"]])
    if plan["restore"]:
        names = [item.replace("=", tools.pin, 1) for item in plan["restore"]]
        _must(run, [*tools.install, *names])
    record.section("packages").pop(owner, None)
    record.save()


def _entry(record: Record, owner: str) -> Dict[str, Any]:
    entry: Dict[str, Any] = record.section("packages").setdefault(owner, {})
    return entry


def _settle(entry: Dict[str, Any], present: Dict[str, str]) -> Dict[str, Optional[str]]:
    """Close the open snapshot: what differs from it is ours, by its first state."""
    before: Dict[str, Optional[str]] = entry.setdefault("before", {})
    snapshot = entry.pop("pending", None)
    changes: Dict[str, Optional[str]] = {}
    if snapshot is not None:
        # A package of before may also have gone: one that ours takes the place of.
        for name in {**snapshot, **present}:
            if snapshot.get(name) != present.get(name):
                changes[name] = snapshot.get(name)
                before.setdefault(name, snapshot.get(name))
    return changes


def _must(run: RunCommand, command: List[str]) -> None:
    code, output, errors = run(command)
    if code != 0:
        raise PackageError(
            f"`{' '.join(command)}` failed with exit code {code}: {_last_words(errors, output)}"
        )


def _last_words(errors: str, output: str) -> str:
    """The lines that say what is wrong, else the last ones."""
    lines = [line.strip() for line in (errors + "\n" + output).splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith(("E:", "Error:", "error:", "dpkg: error"))]
    return " ".join(telling[:3] or lines[-3:]) or "it printed nothing"
