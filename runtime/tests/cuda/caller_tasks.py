"""The programs of tests/callers on this rank's GPU."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist

if TYPE_CHECKING:
    from pool import Rank

sys.path.insert(0, str(Path(__file__).parents[1] / "callers"))


def run_program(me: Rank, name: str, **backend: str) -> None:
    importlib.import_module(name).run(dist.group.WORLD, me.device, backend)
