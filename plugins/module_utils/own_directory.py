# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Directories of fixed names in places where every user of a host may make one."""

from __future__ import annotations

import os
import stat


class NotOwnError(OSError):
    """Somebody else could change what is in a directory; the text says what to do."""


def make_own_directory(path: str, variable: str) -> None:
    """Make ``path``, the value of ``variable``; NotOwnError for one that others can write to.

    In a directory like ``/var/tmp`` anybody may have made it first, to swap what is put there.
    """
    os.makedirs(path, mode=0o755, exist_ok=True)
    about = os.lstat(path)
    if not stat.S_ISDIR(about.st_mode):
        problem = "is a link"
    elif about.st_uid != os.geteuid():
        problem = f"belongs to user {about.st_uid}"
    elif about.st_mode & 0o022:
        problem = f"may be written to by others (mode {stat.S_IMODE(about.st_mode):04o})"
    else:
        return
    raise NotOwnError(f"{variable} ({path}) {problem}; remove it or choose another one.")
