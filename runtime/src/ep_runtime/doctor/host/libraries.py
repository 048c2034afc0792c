# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Where the dynamic loader finds a library, by the directories it is configured with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Dict, List, Optional

if TYPE_CHECKING:
    from .root import HostRoot

# Compiled into the loaders of the distributions.
_DEFAULTS = (
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
)
SONAMES = ("libmlx5.so.1", "libibverbs.so.1", "libcuda.so.1", "libgdrapi.so.2")
_VERSION = re.compile(r"\.so\.(\d+(?:\.\d+)*)$")
_MAX_INCLUDES = 64


def directories(host: HostRoot) -> List[str]:
    """The loader's directories: those of ld.so.conf, then its own."""
    found = _configured(host, "/etc/ld.so.conf", [])
    return [*dict.fromkeys([*found, *_DEFAULTS])]


def login_paths(host: HostRoot, variable: str) -> List[str]:
    """The absolute paths in a variable of every login, such as LD_LIBRARY_PATH."""
    for line in (host.text("/etc/environment") or "").splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and name.replace("export ", "") == variable:
            paths = value.strip("\"'").replace(" ", ":").split(":")
            return [path.rstrip("/") for path in paths if path.startswith("/")]
    return []


def preloaded(host: HostRoot) -> List[str]:
    """Libraries that every process gets first: LD_PRELOAD of logins, and ld.so.preload."""
    words = (host.text("/etc/ld.so.preload") or "").replace(":", " ").split()
    return [*login_paths(host, "LD_PRELOAD"), *(word for word in words if word.startswith("/"))]


def find(host: HostRoot, soname: str, places: List[str]) -> Optional[str]:
    """The first file called ``soname`` in ``places``."""
    return next((f"{place}/{soname}" for place in places if host.exists(f"{place}/{soname}")), None)


def version(host: HostRoot, path: Optional[str]) -> Optional[str]:
    """The version in the name of the file that a library's name leads to."""
    file = host.target(path) if path else ""
    # A file that is called by its soname says no version.
    match = None if path and file.endswith("/" + path.rsplit("/", 1)[-1]) else _VERSION.search(file)
    return match.group(1) if match else None


def facts(host: HostRoot) -> Dict[str, Optional[Dict[str, Optional[str]]]]:
    """``path`` and ``version`` of each of ``SONAMES``; null for one that is not installed."""
    places = directories(host)
    found: Dict[str, Optional[Dict[str, Optional[str]]]] = {}
    for soname in SONAMES:
        path = find(host, soname, places)
        found[soname] = {"path": path, "version": version(host, path)} if path else None
    return found


def _configured(host: HostRoot, path: str, seen: List[str]) -> List[str]:
    if path in seen or len(seen) > _MAX_INCLUDES:
        return []
    seen.append(path)
    found: List[str] = []
    for line in (host.text(path) or "").splitlines():
        words = line.partition("#")[0].split()
        if words[:1] == ["include"]:
            for pattern in words[1:]:
                pattern = pattern if pattern.startswith("/") else "/etc/" + pattern  # noqa: PLW2901
                for included in host.glob(pattern):
                    found += _configured(host, included, seen)
        elif words and words[0].startswith("/"):
            found.append(words[0].rstrip("/"))
    return found
