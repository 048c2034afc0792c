# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Reading files below a root directory, without ever raising for what a host may hold.

Readers take a ``HostRoot`` and not paths, so the same code reads the live system (``/``), a tree
of test fixtures, and the files unpacked from an initramfs.
"""

from __future__ import annotations

import glob
import os
import stat

# Configuration and /proc files are small; anything larger is not what its name says. Below 4 MiB
# by need: /proc/sys refuses a larger read with ENOMEM.
MAX_FILE_BYTES = 1024 * 1024
_MAX_LINKS = 40


class HostRoot:
    """One host's file tree, rooted at ``root``; absolute paths are taken below it."""

    def __init__(self, root: str = "/") -> None:
        self.root = os.path.abspath(root)
        # What is there and refused to be read: without it a silent reader looks like a clean host.
        self.unread: set[str] = set()

    @property
    def live(self) -> bool:
        """Whether this is the running system, where programs may be asked too."""
        return self.root == "/"

    def path(self, path: str) -> str:
        """The real path of the host's ``path``."""
        return os.path.join(self.root, path.lstrip("/"))

    def data(self, path: str, limit: int = MAX_FILE_BYTES) -> bytes | None:
        """Content of a regular file, at most ``limit`` bytes; None when it cannot be read."""
        real = self.path(path)
        try:
            if not os.path.isfile(real):
                return None
            with open(real, "rb") as stream:
                return stream.read(limit)
        except PermissionError:
            self.unread.add(path)
            return None
        except (OSError, ValueError):
            return None

    def text(self, path: str) -> str | None:
        """The same as text; bytes that are no UTF-8 become replacement characters."""
        data = self.data(path)
        return None if data is None else data.decode("utf-8", errors="replace")

    def line(self, path: str) -> str | None:
        """The first line, stripped; None when there is no such file or it is empty."""
        text = self.text(path)
        lines = text.splitlines() if text else []
        return lines[0].strip() if lines else None

    def exists(self, path: str) -> bool:
        """Whether the path exists, following links."""
        return os.path.exists(self.path(path))

    def names(self, path: str) -> list[str]:
        """Sorted names in a directory; empty when it cannot be listed."""
        try:
            return sorted(os.listdir(self.path(path)))
        except PermissionError:
            self.unread.add(path)
            return []
        except (OSError, ValueError):
            return []

    def glob(self, pattern: str) -> list[str]:
        """Paths, as the host names them, that match ``pattern`` (shell style)."""
        prefix = glob.escape(self.root.rstrip("/"))
        found = glob.glob(prefix + pattern)
        return sorted(name[len(self.root.rstrip("/")) :] for name in found)

    def target(self, path: str) -> str:
        """The path with all links followed, as the host names it (links stay below the root)."""
        hops = 0
        done: list[str] = []
        parts = path.split("/")[::-1]
        while parts:
            part = parts.pop()
            if part in ("", "."):
                continue
            if part == "..":
                done = done[:-1]
                continue
            done.append(part)
            try:
                link = os.readlink(self.path("/".join(done)))
            except (OSError, ValueError):
                continue
            hops += 1
            if hops > _MAX_LINKS:
                break
            done = [] if link.startswith("/") else done[:-1]
            parts += link.split("/")[::-1]
        return "/" + "/".join(done)

    def stat(self, path: str) -> os.stat_result | None:
        """``os.stat`` of the path, following links; None when it fails."""
        try:
            return os.stat(self.path(path))
        except (OSError, ValueError):
            return None

    def device_major(self, path: str) -> int | None:
        """The major number of a character device; None when there is no such node.

        In a tree apart from the running system a plain file ``c MAJOR MINOR`` stands for a node,
        which only root can make.
        """
        status = self.stat(path)
        if status is not None and stat.S_ISCHR(status.st_mode):
            return os.major(status.st_rdev)
        words = (self.line(path) or "").split() if not self.live else []
        return int(words[1]) if len(words) == 3 and words[0] == "c" and words[1].isdigit() else None
