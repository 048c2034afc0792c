# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""One at a time on a host: two controllers may work on it at once."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import Iterator

_TIMEOUT_S = 3600


class OccupiedError(OSError):
    """Somebody else has held a directory for too long."""


@contextlib.contextmanager
def exclusive(directory: str) -> Iterator[None]:
    """Hold ``directory`` alone, made if need be and removed at the end when nothing is in it."""
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        os.makedirs(directory, mode=0o755, exist_ok=True)
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if _lock(handle) and _same_directory(handle, directory):
                try:
                    yield
                finally:
                    with contextlib.suppress(OSError):
                        os.rmdir(directory)
                return
        finally:
            os.close(handle)
        if time.monotonic() > deadline:
            raise OccupiedError(f"another run has held {directory} for an hour")
        time.sleep(0.5)


def _lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _same_directory(handle: int, directory: str) -> bool:
    """Whether the locked directory is still the one of that name: its last holder removed it."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(directory))
    except FileNotFoundError:
        return False
