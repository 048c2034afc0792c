# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""A full disk, in one sentence: what it stopped, where, how much is free, and what to do."""

from __future__ import annotations

import errno
import os

_MIB = 1 << 20
_WORDS = ("No space left on device", "Disk quota exceeded")
_NUMBERS = (errno.ENOSPC, errno.EDQUOT)
# Programs that swallow the reason of their failure leave the disk about as full as it was.
_FULL_MIB = 4


class FullDiskError(OSError):
    """A disk is full; the text begins with the sentence."""


def _free_mib(path: str) -> tuple[int, int]:
    """MiB that we may still write to the disk that ``path`` is or would be on, and its size."""
    while not os.path.exists(path):
        path = os.path.dirname(path) or "."
    about = os.statvfs(path)
    # A disk can run out of files first.
    blocks = about.f_bavail if about.f_favail or not about.f_files else 0
    return blocks * about.f_frsize // _MIB, about.f_blocks * about.f_frsize // _MIB


def _sentence(what: str, path: str, remedy: str) -> str:
    free, total = _free_mib(path)
    return (
        f"The disk is full: {what} needs more room in {path}, where {free} of {total} MiB are free;"
        f" {remedy}."
    )


def explained(error: Exception, what: str, path: str, remedy: str) -> Exception:
    """Return ``error``, or what to say instead when it came from a full disk at ``path``.

    To be asked before anything is cleaned up: what is free is part of the sentence.
    """
    said = getattr(error, "errno", None) in _NUMBERS or any(word in str(error) for word in _WORDS)
    if isinstance(error, FullDiskError) or not (said or _free_mib(path)[0] < _FULL_MIB):
        return error
    return FullDiskError(f"{_sentence(what, path, remedy)}\n{error}")


def require(path: str, least_mib: int, what: str, remedy: str) -> None:
    """Raise ``FullDiskError`` when less than ``least_mib`` are free at ``path``."""
    if _free_mib(path)[0] < least_mib:
        raise FullDiskError(_sentence(what, path, remedy))
