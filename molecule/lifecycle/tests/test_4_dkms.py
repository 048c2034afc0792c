"""A driver that does not build for the kernel stops the run with the compiler's first error."""

from __future__ import annotations

import pytest
from conftest import BACKENDS
from walk import Run, kernels

testinfra_hosts = BACKENDS


@pytest.fixture(scope="module")
def failed():
    return Run("site", nvidia_driver_packages=["nvidia-standin-dkms=580.2"])


@pytest.fixture(scope="module")
def mended(failed):
    return Run("site", nvidia_driver_take_over=True)


def test_the_message_is_the_compilers_first_error(host, failed):
    assert failed.status != 0
    assert "nvidia/580.2 does not build" in failed.message()
    assert "nvidia.c:51:17: error: too many arguments to function" in failed.message()


def test_and_not_a_screen_of_output(failed):
    assert "make[" not in failed.output
    assert "CC [M]" not in failed.output


def test_nothing_after_it_was_done(failed):
    assert failed.changes == []


def test_the_version_before_is_put_back_by_the_next_run(host, mended):
    assert mended.status == 0, mended.output[-3000:]
    for kernel in kernels(host):
        assert host.check_output(f"modinfo -k {kernel} -F version nvidia") == "580.1"
