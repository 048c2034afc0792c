# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Reading files below a root directory, without ever raising for what a host may hold.

Readers take a ``HostRoot`` and not paths, so the same code reads the live system (``/``), a tree
of test fixtures, and the files unpacked from an initramfs.
"""

from __future__ import annotations

import glob
import os

# Configuration and /proc files are small; anything larger is not what its name says. Below 4 MiB
# by need: /proc/sys refuses a larger read with ENOMEM.
MAX_FILE_BYTES = 1024 * 1024


class HostRoot:
    """One host's file tree, rooted at ``root``; absolute paths are taken below it."""

    def __init__(self, root: str = "/") -> None:
        self.root = os.path.abspath(root)

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
        except (OSError, ValueError):
            return []

    def glob(self, pattern: str) -> list[str]:
        """Paths, as the host names them, that match ``pattern`` (shell style)."""
        prefix = glob.escape(self.root.rstrip("/"))
        found = glob.glob(prefix + pattern)
        return sorted(name[len(self.root.rstrip("/")) :] for name in found)

    def stat(self, path: str) -> os.stat_result | None:
        """``os.stat`` of the path, following links; None when it fails."""
        try:
            return os.stat(self.path(path))
        except (OSError, ValueError):
            return None
