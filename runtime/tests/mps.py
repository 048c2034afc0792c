"""The environment that rank processes of a backend start with."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def mps_server() -> Iterator[dict[str, str]]:
    """Give the environment of an MPS server of our own, up as long as the block.

    Empty where there is none to start.
    """
    if shutil.which("nvidia-cuda-mps-control") is None:
        yield {}
        return
    folder = tempfile.mkdtemp(prefix="ep-mps-")
    env = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
    for path in env.values():
        Path(path).mkdir()
    control = ["nvidia-cuda-mps-control"]
    subprocess.run([*control, "-d"], env={**os.environ, **env}, check=True)
    try:
        yield env
    finally:
        subprocess.run(control, input=b"quit\n", env={**os.environ, **env}, check=False)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def environment(backend: str) -> Iterator[dict[str, str]]:
    """Give what ranks need: no GPU for the reference backend, several on one GPU for others."""
    if backend == "reference":
        yield {"CUDA_VISIBLE_DEVICES": ""}
        return
    with mps_server() as env:
        yield env
