# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""What loading a kernel module would give, by the rules of modprobe.d(5) and the kernel.

Two programs have their say. modprobe decides which files count (a base name in an earlier
directory masks the same name in a later one), in what order (by base name), and appends the
kernel command line. The kernel then parses the joined text, and of a parameter that is named
twice the last assignment wins. A substring search gets each of these wrong.
"""

from __future__ import annotations

import os
import posixpath
import re
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Optional, Tuple

if TYPE_CHECKING:
    from .root import HostRoot

DIRECTORIES = (
    "/etc/modprobe.d",
    "/run/modprobe.d",
    "/usr/local/lib/modprobe.d",
    "/usr/lib/modprobe.d",
    "/lib/modprobe.d",
)
COMMAND_LINE = "/proc/cmdline"
# Sorts late, so that it wins; named after us, so that it masks no file of a vendor.
OPTIONS_FILE = "/etc/modprobe.d/zz-epfleet-nvidia.conf"
DRIVER = "nvidia"
_RENAMED = re.compile(r"\bmodprobe\b[^;&|]*\s(?:-i|--ignore-install)\s+(nvidia-[\w-]+)")
_MAX_LINKS = 8
_BLANKS = "\t "


class ConfigFile(NamedTuple):
    """A modprobe.d file that counts, or that an earlier one of the same name masks."""

    path: str
    content: bytes
    masked_by: Optional[str]


class Assignment(NamedTuple):
    """One ``parameter=value`` for a module; ``value`` is None for a parameter without ``=``."""

    parameter: str
    value: Optional[str]
    source: str
    line: int


class Rule(NamedTuple):
    """One other line about a module: ``install COMMAND``, ``remove COMMAND`` or ``blacklist``."""

    kind: str
    text: str
    source: str
    line: int


class ModuleConfig(NamedTuple):
    """Everything modprobe.d and the kernel command line say about one module, in reading order."""

    assignments: List[Assignment]
    rules: List[Rule]

    def effective(self) -> Dict[str, str]:
        """The value each parameter ends up with: the last assignment wins."""
        return {item.parameter: item.value or "" for item in self.assignments}


def config_files(host: HostRoot) -> list[ConfigFile]:
    """All modprobe.d files of ``host`` in reading order, masked ones included.

    Two names of one directory (``/lib`` is often a link to ``/usr/lib``) count once.
    """
    found: List[Tuple[str, str]] = []
    seen_directories = set()
    for directory in DIRECTORIES:
        real = os.path.realpath(host.path(directory))
        if real in seen_directories:
            continue
        seen_directories.add(real)
        found += [(name, directory + "/" + name) for name in host.names(directory) if _counts(name)]

    def read(path: str) -> Optional[bytes]:
        # A name that leads to no file (a dangling link, a directory) masks nothing; a link to
        # /dev/null is the customary way to mask, and reads as empty.
        if not host.exists(path) or os.path.isdir(host.path(path)):
            return None
        return host.data(path) or b""

    return order_files(found, read)


def ignored_files(host: HostRoot) -> list[dict[str, Any]]:
    """Files in modprobe.d that speak of the driver and that modprobe skips for their names.

    Each with its ``path`` and the ``line`` of its first ``options`` line for the driver.
    """
    found = []
    for directory in DIRECTORIES[:2]:
        for name in host.names(directory):
            text = None if _counts(name) else host.text(f"{directory}/{name}")
            for number, line in logical_lines(text or ""):
                keyword, rest = _token(line)
                if keyword == "options" and _underscores(_token(rest)[0]).startswith(DRIVER):
                    found.append({"path": f"{directory}/{name}", "line": number})
                    break
    return found


def driver_module(files: list[ConfigFile]) -> str:
    """The name under which modprobe looks up the options of the NVIDIA driver.

    Debian installs it as ``nvidia-current`` (or with a branch in place of ``current``), with a rule
    that turns ``nvidia`` into that; ``options nvidia`` then says nothing.
    """
    for rule in module_config(files, DRIVER).rules:
        match = _RENAMED.search(rule.text) if rule.kind == "install" else None
        if match:
            return match.group(1)
    return DRIVER


def order_files(
    found: list[tuple[str, str]], read: Callable[[str], Optional[bytes]]
) -> list[ConfigFile]:
    """Sort ``(base name, path)`` pairs, given by directory priority, as modprobe reads them."""
    first: Dict[str, str] = {}
    files: List[Tuple[str, int, ConfigFile]] = []
    for name, path in found:
        content = read(path)
        if content is None:
            continue
        files.append((name, len(files), ConfigFile(path, content, first.get(name))))
        first.setdefault(name, path)
    # By bytes, as strcmp does; the priority keeps a masked file after the one that masks it.
    files.sort(key=lambda item: (os.fsencode(item[0]), item[1]))
    return [item for _name, _priority, item in files]


def order_archive(files: dict[str, bytes], links: dict[str, str]) -> list[ConfigFile]:
    """``config_files`` for an archive: {name without leading slash: content, or link target}."""
    found = []
    members = [*files, *links]
    for directory in DIRECTORIES:
        prefix = directory.lstrip("/") + "/"
        names = (path[len(prefix) :] for path in members if path.startswith(prefix))
        found += [
            (name, directory + "/" + name)
            for name in sorted(names)
            if "/" not in name and _counts(name)
        ]
    return order_files(found, lambda path: _follow(path.lstrip("/"), files, links))


def _follow(name: str, files: dict[str, bytes], links: dict[str, str]) -> Optional[bytes]:
    for _hop in range(_MAX_LINKS):
        if name in files or name not in links:
            return files.get(name)
        if links[name] == "/dev/null":
            return b""
        directory = posixpath.join("/", posixpath.dirname(name))
        name = posixpath.normpath(posixpath.join(directory, links[name])).lstrip("/")
    return None


def _counts(name: str) -> bool:
    return len(name) >= 6 and not name.startswith(".") and name.endswith((".conf", ".alias"))


def module_config(
    files: list[ConfigFile], module: str, command_line: str | None = None
) -> ModuleConfig:
    """What ``files`` and the kernel's command line say about ``module``."""
    wanted = _underscores(module)
    assignments: List[Assignment] = []
    rules: List[Rule] = []
    for item in files:
        if item.masked_by is not None:
            continue
        for number, line in logical_lines(item.content.decode("utf-8", errors="replace")):
            keyword, rest = _token(line)
            name, text = _token(rest)
            if _underscores(name) != wanted:
                continue
            if keyword == "options":
                assignments += [
                    Assignment(parameter, value, item.path, number)
                    for parameter, value in kernel_arguments(text)
                ]
            elif keyword in ("install", "remove") and text:
                rules.append(Rule(keyword, text.strip(), item.path, number))
            elif keyword == "blacklist":
                rules.append(Rule(keyword, "", item.path, number))
    for parameter, value in kernel_arguments(command_line or ""):
        owner, dot, name = parameter.partition(".")
        if dot and _underscores(owner) == wanted:
            assignments.append(Assignment(name, value, COMMAND_LINE, 1))
        elif parameter == "modprobe.blacklist" and wanted in _underscores(value or "").split(","):
            rules.append(Rule("blacklist", "", COMMAND_LINE, 1))
    return ModuleConfig(assignments, rules)


def _token(text: str) -> Tuple[str, str]:
    """The first word, and what follows the one blank behind it."""
    text = text.lstrip(_BLANKS)
    end = next((i for i, character in enumerate(text) if character in _BLANKS), len(text))
    return text[:end], text[end + 1 :]


def logical_lines(text: str) -> list[tuple[int, str]]:
    """Lines with their first line's number, joined and unescaped as libkmod reads them.

    A backslash before a newline joins; before anything else it is dropped.
    """
    lines = []
    current: List[str] = []
    number = start = 1
    characters = iter(text)
    for character in characters:
        if character == "\\":
            character = next(characters, "")  # noqa: PLW2901 - the escaped one takes its place
            if character == "\n":
                number += 1
                continue
        elif character == "\n":
            lines.append((start, "".join(current)))
            current = []
            number += 1
            start = number
            continue
        current.append(character)
    if current:
        lines.append((start, "".join(current)))
    return [(first, line) for first, line in lines if line and not line.startswith("#")]


def kernel_arguments(text: str) -> list[tuple[str, str | None]]:
    """Split a parameter string as the kernel's ``next_arg`` does.

    Blanks separate unless inside double quotes; quotes around a whole value are not part of it;
    a dash in a name is an underscore; ``--`` ends the list.
    """
    arguments: List[Tuple[str, Optional[str]]] = []
    for word in _quoted_words(text):
        if word == "--":
            break
        unquoted = word
        if word.startswith('"'):
            unquoted = word[1:-1] if len(word) > 1 and word.endswith('"') else word[1:]
        name, equals, value = unquoted.partition("=")
        if not equals or not name:
            arguments.append((_underscores(unquoted), None))
            continue
        if value.startswith('"'):
            value = value[1:-1] if len(value) > 1 and value.endswith('"') else value[1:]
        arguments.append((_underscores(name), value))
    return arguments


def _quoted_words(text: str) -> list[str]:
    words = []
    current = ""
    quoted = False
    for character in text:
        if character.isspace() and not quoted:
            if current:
                words.append(current)
            current = ""
            continue
        if character == '"':
            quoted = not quoted
        current += character
    return [*words, current] if current else words


def _underscores(name: str) -> str:
    return name.replace("-", "_")


def registry_dwords(value: str | None) -> dict[str, str]:
    """NVreg_RegistryDwords as a dictionary; blanks and a trailing semicolon mean nothing."""
    entries = {}
    for entry in (value or "").replace(" ", "").split(";"):
        key, _equals, number = entry.partition("=")
        if key:
            entries[key] = number
    return entries


def same_value(parameter: str, first: str | None, second: str | None) -> bool:
    """Whether two values of a driver parameter mean the same."""
    if parameter.endswith("RegistryDwords"):
        return _dword_numbers(first) == _dword_numbers(second)
    return bool(_number(first) == _number(second))


def gives(parameter: str, wanted: str, value: str | None) -> bool:
    """Whether ``value`` gives what ``wanted`` asks; registry entries beyond it are no matter."""
    if parameter.endswith("RegistryDwords"):
        given = _dword_numbers(value)
        return all(given.get(key) == number for key, number in _dword_numbers(wanted).items())
    return same_value(parameter, wanted, value)


def _dword_numbers(value: str | None) -> dict[str, Any]:
    # The driver reads 0x1 and 1 alike.
    return {key: _number(number) for key, number in registry_dwords(value).items()}


def _number(value: str | None) -> Any:
    text = (value or "").strip()
    try:
        return int(text, 0)
    except ValueError:
        return text
