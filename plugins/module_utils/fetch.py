# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Getting an archive onto the host, and unpacking it only when its checksum is right."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from http.client import HTTPException
from typing import Any

from ansible.module_utils.urls import open_url

_CHUNK = 1 << 20


class FetchError(Exception):
    """What could not be fetched or is not what it should be."""


def _opened(url: str) -> Any:
    return open(url, "rb") if url.startswith("/") else open_url(url)


def fetch(url: str, checksum: str, target: str) -> None:
    """Put what ``url`` (or an absolute path on the host) leads to at ``target``.

    ``checksum`` is ``sha256:HEX``. Raises FetchError, with nothing left at ``target``.
    """
    algorithm, _colon, expected = checksum.partition(":")
    if algorithm != "sha256" or len(expected) != 64:
        raise FetchError(f"The checksum of {url} is {checksum!r}; it must be sha256:HEX.")
    digest = hashlib.sha256()
    try:
        with _opened(url) as source, open(target, "wb") as sink:
            for block in iter(lambda: source.read(_CHUNK), b""):
                digest.update(block)
                sink.write(block)
    except (OSError, ValueError, HTTPException) as error:
        raise FetchError(f"{url} can't be fetched: {error}.") from error
    if digest.hexdigest() != expected.lower():
        os.unlink(target)
        raise FetchError(
            f"{url} has the SHA-256 {digest.hexdigest()} and not {expected}: the download is"
            " broken, or the file is another one."
        )


def unpack(archive: str, target: str) -> None:
    """Unpack a tar archive's one top folder to ``target``; nothing may lead out of it."""
    staging = target + ".unpacking"
    shutil.rmtree(staging, ignore_errors=True)
    ours = os.geteuid(), os.getegid()
    try:
        with tarfile.open(archive) as tar:
            for member in tar.getmembers():
                path = os.path.normpath(os.path.join("/", member.name))
                if member.name.startswith("/") or ".." in member.name.split("/"):
                    raise FetchError(f"{archive} holds {member.name}, which leads out of it.")
                if member.issym() or member.islnk():
                    base = os.path.dirname(path) if member.issym() else "/"
                    if os.path.isabs(member.linkname) or os.path.normpath(
                        os.path.join(base.lstrip("/"), member.linkname)
                    ).startswith(".."):
                        raise FetchError(f"{archive} holds a link that leads out of it.")
                # As root, tarfile gives files to the users that the archive names.
                member.uid, member.gid, member.uname, member.gname = *ours, "", ""
                member.mode &= 0o755
            tar.extractall(staging)  # checked above; tarfile's own filter needs Python 3.12
    except tarfile.TarError as error:
        raise FetchError(f"{archive} is no readable archive: {error}.") from error
    tops = os.listdir(staging)
    if len(tops) != 1:
        raise FetchError(f"{archive} should hold one folder and holds {', '.join(sorted(tops))}.")
    shutil.rmtree(target, ignore_errors=True)
    os.rename(os.path.join(staging, tops[0]), target)
    os.rmdir(staging)
