# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""The controller's cache of built wheels: one directory a key, taken or left as a whole.

An entry is made under a temporary name and appears by one rename, so an interrupted run leaves
no half entry under a key, and two controllers that store the same key at once both end with one
whole entry. Whatever is found under a key is checked against its own digests before use.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import time
from typing import Any

MANIFEST = "wheel.json"
_SCHEMA = 1
_LEFTOVER_AGE_S = 3600


def _sha256(path: str) -> str:
    total = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            total.update(block)
    return total.hexdigest()


def lookup(cache: str, key: str) -> tuple[dict[str, Any] | None, str]:
    """Return the entry of ``key`` and why there is none.

    An entry holds ``path`` (of the wheel), ``sha256``, ``size``, ``payload``, ``inputs`` and
    ``built_on``. A damaged entry is never returned; the second value then says what is wrong.
    """
    directory = os.path.join(cache, key)
    if not os.path.isdir(directory):
        return None, "not built yet"
    try:
        return _checked_entry(directory), ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        return None, f"{directory} is damaged ({error!r})"


def _checked_entry(directory: str) -> dict[str, Any]:
    with open(os.path.join(directory, MANIFEST), encoding="utf-8") as stream:
        manifest = json.load(stream)
    if manifest["schema"] != _SCHEMA:
        raise ValueError("written by another version of this collection")
    wheel = os.path.join(directory, os.path.basename(manifest["file"]))
    found = os.path.getsize(wheel)
    if found != manifest["size"]:
        raise ValueError(f"{wheel} has {found} bytes instead of {manifest['size']}")
    if _sha256(wheel) != manifest["sha256"]:
        raise ValueError(f"{wheel} does not have the SHA-256 noted when it was built")
    names = ("sha256", "size", "payload", "inputs", "built_on")
    return dict({name: manifest[name] for name in names}, path=wheel)


def store(cache: str, key: str, name: str, content: bytes, about: dict[str, Any]) -> dict[str, Any]:
    """Keep ``content`` as the wheel ``name`` of ``key`` and return its entry.

    ``about`` holds ``payload``, ``inputs`` and ``built_on``. A whole entry that is there already
    (another controller was faster) stays, and is returned. Raises ``OSError`` when the cache
    cannot be written; the cache is then as it was.
    """
    os.makedirs(cache, mode=0o755, exist_ok=True)
    _sweep(cache)
    fresh = tempfile.mkdtemp(prefix=".new-", dir=cache)
    try:
        os.chmod(fresh, 0o755)
        manifest = dict(
            about,
            schema=_SCHEMA,
            file=os.path.basename(name),
            sha256=hashlib.sha256(content).hexdigest(),
            size=len(content),
        )
        _write(os.path.join(fresh, manifest["file"]), content)
        text = json.dumps(manifest, indent=2, sort_keys=True) + "\n"
        _write(os.path.join(fresh, MANIFEST), text.encode("utf-8"))
        _put_in_place(cache, key, fresh)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    entry, problem = lookup(cache, key)
    if entry is None:
        raise OSError(f"the wheel was stored in {cache} but cannot be used: {problem}")
    return entry


def _sweep(cache: str) -> None:
    """Remove what runs that were killed long ago left under temporary names."""
    for name in os.listdir(cache):
        path = os.path.join(cache, name)
        if name.startswith((".new-", ".bad-")):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - os.path.getmtime(path) > _LEFTOVER_AGE_S:
                    shutil.rmtree(path, ignore_errors=True)


def _write(path: str, content: bytes) -> None:
    """Write a file and wait for the disk, so that a full disk shows here and not later."""
    with open(path, "wb") as stream:
        stream.write(content)
        os.fchmod(stream.fileno(), 0o644)
        stream.flush()
        os.fsync(stream.fileno())


def _put_in_place(cache: str, key: str, fresh: str) -> None:
    target = os.path.join(cache, key)
    for _attempt in range(3):
        try:
            os.rename(fresh, target)
            return
        except OSError:
            if not os.path.isdir(target):
                raise
        if lookup(cache, key)[0] is not None:
            return
        # Damaged: move it aside first, because removing a directory is not one step.
        aside = tempfile.mkdtemp(prefix=".bad-", dir=cache)
        with contextlib.suppress(FileNotFoundError):
            os.rename(target, os.path.join(aside, key))
        shutil.rmtree(aside, ignore_errors=True)
    raise OSError(f"{target} is damaged and could not be replaced")
