"""Where there is a GPU, GDRCopy is tried by its own test, which is built from the archive.

The test's program is a stand-in with the real one's words. A GPU, a loaded driver and gdrdrv, and a
CUDA toolkit's header are fixtures.
"""

from __future__ import annotations

import pytest
from test_7_loaded import ACCEPTED, LOAD
from test_8_cpu_mode import AWAY, CPU, FIXTURES
from walk import Run, everywhere

TAGS = "--tags=gdrcopy"
WANTED = {**CPU, **ACCEPTED, "nvshmem_version": "3.3.24"}
TOOLKIT = """
set -e
mkdir -p /usr/local/cuda/bin /usr/local/cuda/include
touch /usr/local/cuda/bin/nvcc /run/gdrcopy-broken
echo '#define CUDA_VERSION 13000' > /usr/local/cuda/include/cuda.h
"""
RUNS = "cat /run/gdrcopy-runs"


@pytest.fixture(scope="module")
def equipped():
    everywhere(f"bash -s <<'EOF'\n{LOAD}EOF")
    everywhere(FIXTURES)
    everywhere(TOOLKIT)
    yield
    everywhere(f"{AWAY}; umount /proc/driver; rm -r /usr/local/cuda /run/gdrcopy-runs")


@pytest.fixture(scope="module")
def broken(equipped):
    return Run("site", TAGS, **WANTED)


@pytest.fixture(scope="module")
def whole(broken):
    everywhere("rm /run/gdrcopy-broken")
    return Run("site", TAGS, **WANTED), everywhere(RUNS)


def test_the_first_failing_test_is_the_error(broken):
    assert broken.status != 0
    assert 'test basic_with_tokens failed: Assertion "CUDA_SUCCESS == result"' in broken.message()


def test_what_failed_is_tried_again_against_the_library_and_the_toolkit(whole):
    run, runs = whole
    assert run.status == 0, run.output[-3000:]
    for text in runs.values():
        assert text.splitlines() == ["2.5 with CUDA 13000"] * 2


def test_what_passed_is_not_tried_again(whole):
    again = Run("site", TAGS, **WANTED)
    assert again.status == 0, again.output[-3000:]
    assert again.changes == []
    assert everywhere(RUNS) == whole[1]
