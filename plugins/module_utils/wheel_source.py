# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""The source of the runtime wheel: which files count, their digest, and a reproducible archive.

The digest is the first part of a wheel's key, so it may depend on nothing but what a build
reads: neither on time stamps, owners and modes nor on caches and tests beside the source.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile

IGNORED_DIRECTORIES = frozenset({"__pycache__", "build", "dist"})
IGNORED_TOP_DIRECTORIES = frozenset({"tests"})
IGNORED_SUFFIXES = (".pyc", ".pyo", ".so", ".egg-info", ".whl", "~")

# 1980-01-01, the earliest time a zip file (and so a wheel) can hold.
SOURCE_EPOCH = 315532800


def _counts(name: str) -> bool:
    """Hidden files configure tools and editors, never a build."""
    return not name.startswith(".") and not name.endswith(IGNORED_SUFFIXES)


def source_files(root: str) -> list[str]:
    """Return the files below ``root`` that a build reads, as sorted paths with ``/``."""
    found = []
    for directory, names, files in os.walk(root):
        relative = os.path.relpath(directory, root)
        at_top = relative == os.curdir
        names[:] = sorted(
            name
            for name in names
            if _counts(name)
            and name not in IGNORED_DIRECTORIES
            and not (at_top and name in IGNORED_TOP_DIRECTORIES)
        )
        for name in files:
            if _counts(name):
                path = name if at_top else os.path.join(relative, name)
                found.append(path.replace(os.sep, "/"))
    return sorted(found)


def read_source(root: str) -> dict[str, bytes]:
    """Return path and content of every source file below ``root``.

    Raises ``ValueError`` when ``root`` is not the source of a Python package.
    """
    if not os.path.isfile(os.path.join(root, "pyproject.toml")):
        raise ValueError(f"{root} holds no pyproject.toml: the runtime's source is missing")
    content = {}
    for path in source_files(root):
        with open(os.path.join(root, path), "rb") as stream:
            content[path] = stream.read()
    return content


def source_digest(content: dict[str, bytes]) -> str:
    """Return the SHA-256 over sorted paths and their bytes, in hexadecimal."""
    total = hashlib.sha256()
    for path in sorted(content):
        inner = hashlib.sha256(content[path]).hexdigest()
        total.update(f"{path}\0{inner}\n".encode())
    return total.hexdigest()


def source_archive(content: dict[str, bytes]) -> bytes:
    """Return a ``.tar.gz`` of ``content`` whose bytes depend on nothing else."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(content):
            member = tarfile.TarInfo(path)
            member.size = len(content[path])
            member.mtime = SOURCE_EPOCH
            member.mode = 0o644
            archive.addfile(member, io.BytesIO(content[path]))
    return gzip.compress(packed.getvalue(), mtime=0)
