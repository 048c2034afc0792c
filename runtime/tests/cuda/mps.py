"""An MPS server of our own, so that kernels of several processes on one GPU overlap."""

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
    """Give the environment of its clients; an empty one where MPS is not installed."""
    control = "nvidia-cuda-mps-control"
    if shutil.which(control) is None:
        yield {}
        return
    folder = tempfile.mkdtemp(prefix="ep-mps-")
    env = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
    for path in env.values():
        Path(path).mkdir()
    subprocess.run([control, "-d"], env={**os.environ, **env}, check=True)
    try:
        yield env
    finally:
        subprocess.run([control], input=b"quit\n", env={**os.environ, **env}, check=False)
        shutil.rmtree(folder, ignore_errors=True)
