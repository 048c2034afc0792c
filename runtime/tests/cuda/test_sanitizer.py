"""compute-sanitizer finds no bad access, race, uninitialised read or barrier misuse."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pool import free_port

PROGRAM = Path(__file__).parent / "sanitizer_program.py"


@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="needs compute-sanitizer")
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck", "synccheck"])
def test_clean(tool: str, size: int) -> None:
    env = {
        **os.environ,
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        # The sanitizer should see the runtime's memory, not one pool of torch's.
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
    }
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", sys.executable]
    ranks = [
        subprocess.Popen(
            [*command, str(PROGRAM)],
            env={**env, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    outputs = [process.communicate(timeout=400)[0] for process in ranks]
    for rank, (process, output) in enumerate(zip(ranks, outputs)):
        assert process.returncode == 0, f"rank {rank}: {output[-3000:]}"
        assert "ERROR SUMMARY: 0 errors" in output or "RACECHECK SUMMARY: 0 hazards" in output
        assert f"rank {rank} of {size}: checked" in output
