# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""One digest for what a wheel holds and for what an installed distribution holds.

Both are computed from the bytes of the files, so an installation that was cut short, edited or
made from another build differs. What pip itself adds or rewrites (RECORD, scripts, byte code)
is left out.
"""

from __future__ import annotations

import csv
import glob
import hashlib
import os
import re
import zipfile
from email.parser import HeaderParser
from typing import Any

# Written by pip beside the files of the wheel.
_ADDED_BY_PIP = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})
_DATA_PATH = re.compile(r"^[^/]+\.data/(?P<scheme>[^/]+)/(?P<rest>.+)$")


class PayloadError(ValueError):
    """A wheel or an installed distribution cannot be read as one."""


def _digest(hashes: dict[str, str]) -> str:
    lines = "".join(f"{path}\0{hashes[path]}\n" for path in sorted(hashes))
    return hashlib.sha256(lines.encode()).hexdigest()


def _counts(path: str) -> bool:
    directory, _slash, name = path.rpartition("/")
    if path.endswith(".pyc"):
        return False
    return not (directory.endswith(".dist-info") and name in _ADDED_BY_PIP)


def _installed_path(path: str) -> str | None:
    """Where an archive member lands below site-packages; None when it lands elsewhere."""
    match = _DATA_PATH.match(path)
    if match is None:
        return path
    return match.group("rest") if match.group("scheme") in ("purelib", "platlib") else None


def read_wheel(path: str) -> dict[str, Any]:
    """Return ``name``, ``version``, ``requires`` and ``payload`` of a wheel file.

    Raises ``PayloadError`` when the file is damaged or is no wheel.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
            if damaged is not None:
                raise PayloadError(f"{path}: the content of {damaged} is damaged")
            hashes = {}
            metadata = None
            for name in archive.namelist():
                target = _installed_path(name)
                if name.endswith(".dist-info/METADATA"):
                    metadata = archive.read(name).decode("utf-8")
                if target is not None and not name.endswith("/") and _counts(target):
                    hashes[target] = hashlib.sha256(archive.read(name)).hexdigest()
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        raise PayloadError(f"{path} is not a readable wheel: {error}") from error
    if metadata is None:
        raise PayloadError(f"{path} is not a wheel: it holds no METADATA")
    headers = HeaderParser().parsestr(metadata)
    return {
        "name": headers["Name"],
        "version": headers["Version"],
        "requires": headers.get_all("Requires-Dist") or [],
        "payload": _digest(hashes),
    }


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def find_dist_info(site_packages: str, distribution: str) -> list[str]:
    """Return the ``.dist-info`` directories of ``distribution`` below ``site_packages``."""
    found = []
    for path in sorted(glob.glob(os.path.join(glob.escape(site_packages), "*.dist-info"))):
        name = os.path.basename(path)[: -len(".dist-info")].rpartition("-")[0]
        if _normal(name) == _normal(distribution):
            found.append(path)
    return found


def read_installed(site_packages: str, distribution: str) -> dict[str, Any] | None:
    """Return ``version`` and ``payload`` of an installed distribution, or None without one.

    ``payload`` is None when the installation is not whole: no RECORD (pip was interrupted), two
    versions at once, or a recorded file that is gone.
    """
    directories = find_dist_info(site_packages, distribution)
    if not directories:
        return None
    version = os.path.basename(directories[-1])[: -len(".dist-info")].rpartition("-")[2]
    torn = {"version": version, "payload": None}
    record = os.path.join(directories[-1], "RECORD")
    if len(directories) > 1 or not os.path.isfile(record):
        return torn
    hashes = {}
    with open(record, encoding="utf-8", newline="") as stream:
        paths = [row[0] for row in csv.reader(stream) if row]
    for path in paths:
        if path.startswith("../") or os.path.isabs(path) or not _counts(path):
            continue
        try:
            with open(os.path.join(site_packages, path), "rb") as stream_bytes:
                hashes[path] = hashlib.sha256(stream_bytes.read()).hexdigest()
        except OSError:
            return torn
    return {"version": version, "payload": _digest(hashes)}
