"""With /boot full the old image stays as it is, and the message says so."""

from __future__ import annotations

import pytest
from conftest import BACKENDS, NAMES
from walk import Run, everywhere, inside_image, kernels

testinfra_hosts = BACKENDS

CHANGE = {
    "nvidia_driver_take_over": True,
    "nvidia_driver_registry_dwords": {"PeerMappingOverride": 1, "EpfleetFull": 1},
}
# A file system that holds what /boot holds, and half a megabyte more.
SMALL = """
set -e
size=$(( $(du -sk /boot | cut -f 1) + 512 ))
mkdir -p /run/small
mount -t tmpfs -o size=${size}k small /run/small
cp -a /boot/. /run/small
mount --bind /run/small /boot
"""


DIGESTS = "sha256sum /boot/initrd.img-*; find /boot -name '*epfleet*'"


@pytest.fixture(scope="module")
def full():
    """The run, and the images' checksums before and after it."""
    everywhere(SMALL)
    before = everywhere(DIGESTS)
    run = Run("site", "--tags=nvidia_driver,initramfs", **CHANGE)
    after = everywhere(DIGESTS)
    everywhere("umount /boot && umount /run/small")
    return run, before, after


def test_the_run_fails_and_says_what_is_needed(full):
    run, _before, _after = full
    assert run.status != 0
    for name in NAMES:
        assert f"fatal: [{name}]: FAILED!" in run.output
    assert "No room for the new initramfs of kernel" in run.message()
    assert "the old image is still in place" in run.message()


def test_the_old_image_is_untouched_and_nothing_else_is_left(full):
    _run, before, after = full
    assert after == before


@pytest.fixture(scope="module")
def roomy(full):
    return Run("site", "--tags=nvidia_driver,initramfs", **CHANGE)


def test_with_room_the_next_run_completes(host, roomy):
    assert roomy.status == 0, roomy.output[-3000:]
    for kernel in kernels(host):
        assert "EpfleetFull=1" in inside_image(host, kernel)[0]
