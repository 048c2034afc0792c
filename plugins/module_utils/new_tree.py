# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""A folder that appears in one step or not at all: made beside its place, and then moved there."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from typing import Iterator


@contextlib.contextmanager
def working_beside(dest: str) -> Iterator[str]:
    """Give an empty folder on the disk of ``dest``, and remove it at the end with all it holds."""
    parent = os.path.dirname(dest)
    os.makedirs(parent, mode=0o755, exist_ok=True)
    # Apart first, so that something half-made never stands where a version is looked for.
    work = tempfile.mkdtemp(prefix=".unpacking-", dir=parent)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def put_in_place(tree: str, dest: str) -> None:
    """Make the folder ``tree``, which is beside it, ``dest``; what was there is replaced."""
    os.chmod(tree, 0o755)
    shutil.rmtree(dest, ignore_errors=True)
    os.rename(tree, dest)
