"""Where the test fleet keeps its things, and the locks that let two runs share them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parents[2]


def cache_directory() -> Path:
    """Return the folder of everything that outlives a run: `$EPFLEET_CACHE` or ~/.cache/epfleet."""
    return Path(os.environ.get("EPFLEET_CACHE") or Path.home() / ".cache" / "epfleet")


def run_identity() -> str:
    """Return six hex digits of this checkout (and of `$EPFLEET_RUN`: two fleets of one)."""
    name = os.environ.get("EPFLEET_RUN", "") + str(REPOSITORY)
    return hashlib.sha256(name.encode()).hexdigest()[:6]


def run_directory() -> Path:
    """Return the folder of this checkout's fleet: its state, its hosts' trees, its ssh key."""
    return cache_directory() / "run" / run_identity()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock at `path`; a second run waits instead of building the same thing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
