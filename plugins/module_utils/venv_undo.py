# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""A virtual environment as it was before an installation that failed."""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import Iterator

from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_payload import (
    read_installed,
)


class Undo:
    """Remembers which files ``venv`` has, to remove later those that came.

    pip puts back what it replaces itself, but leaves the files of a new package that it could not
    write to the end, and the packages before it.
    """

    def __init__(self, venv: str, site_packages: str | None, ours: tuple[str, ...]) -> None:
        self.venv = venv
        self.ours = ours
        self.site_packages = site_packages
        self.there = os.path.lexists(venv)
        self.paths = set(self._walk())
        self.payloads = self._payloads()

    def _walk(self) -> Iterator[str]:
        """All paths below the environment, what is in a directory before the directory."""
        for directory, folders, files in os.walk(self.venv, topdown=False):
            for name in files + folders:
                yield os.path.join(directory, name)

    def _payloads(self) -> dict[str, str]:
        """The digest of each distribution of ours that is there and whole."""
        found = {}
        for name in self.ours if self.site_packages else ():
            about = read_installed(self.site_packages or "", name)
            if about is not None and about["payload"] is not None:
                found[name] = about["payload"]
        return found

    def back(self) -> None:
        """Remove what came; nothing when ours was replaced, since the new one may need it."""
        if not self.there:
            shutil.rmtree(self.venv, ignore_errors=True)
            return
        now = self._payloads()
        if any(now.get(name) != payload for name, payload in self.payloads.items()):
            return
        for path in self._walk():
            if path in self.paths:
                continue
            # Others may be at work in there.
            with contextlib.suppress(OSError):
                if os.path.isdir(path) and not os.path.islink(path):
                    os.rmdir(path)
                else:
                    os.unlink(path)
