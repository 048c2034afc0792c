"""A newer kernel arrives: it gets driver and options, or the run says why not."""

from __future__ import annotations

import pytest
from conftest import BACKENDS, NAMES
from walk import LINE, Run, inside_image, kernels

testinfra_hosts = BACKENDS[:1]


def newest(host):
    (path,) = host.check_output("ls /srv/kernel/linux-image-*").split()
    return path.split("linux-image-")[1].split("_")[0]


@pytest.fixture(scope="module")
def without_headers(host):
    """The kernel as an unattended upgrade brings it, its headers forgotten."""
    assert newest(host) not in kernels(host)
    host.check_output("DEBIAN_FRONTEND=noninteractive dpkg --install /srv/kernel/linux-image-*.deb")
    yield Run("site", "--tags=nvidia_driver", limit=NAMES[0])
    # The tests after this one look at hosts with one kernel each.
    files = host.check_output("ls /srv/kernel").split()
    names = [name.split("_")[0] for name in files]
    host.check_output(f"DEBIAN_FRONTEND=noninteractive apt-get -q -y purge {' '.join(names)}")


@pytest.fixture(scope="module")
def upgraded(host, without_headers):
    # Unpacked only: so DKMS has not built anything by itself.
    host.check_output("dpkg --unpack --no-triggers /srv/kernel/linux-headers-*.deb")
    return Run("site", limit=NAMES[0])


def test_a_kernel_without_headers_is_named(host, without_headers):
    assert without_headers.status != 0
    assert f"linux-headers-{newest(host)}" in without_headers.message()


def test_driver_is_built_for_both_kernels(host, upgraded):
    assert upgraded.status == 0, upgraded.output[-3000:]
    assert len(kernels(host)) == 2
    for kernel in kernels(host):
        assert host.check_output(f"modinfo -k {kernel} -F version nvidia") == "580.1"


def test_the_new_image_holds_the_options(host, upgraded):
    assert LINE.split()[2] in inside_image(host, newest(host))[0]


def test_and_then_nothing_changes(upgraded):
    assert Run("site", limit=NAMES[0]).changes == []


@pytest.fixture(scope="module")
def next_only(host, upgraded):
    """Other options, put into the image of the next boot alone; and then into all."""
    dwords = {"PeerMappingOverride": 1, "EpfleetNext": 1}
    run = Run(
        "site",
        limit=NAMES[0],
        initramfs_kernels="next",
        nvidia_driver_registry_dwords=dwords,
    )
    images = {kernel: inside_image(host, kernel)[0] for kernel in kernels(host)}
    return run, images, Run("site", limit=NAMES[0])


def test_the_image_of_the_next_boot_alone_can_be_rebuilt(host, next_only):
    run, images, _back = next_only
    assert run.status == 0, run.output[-3000:]
    assert {kernel for kernel, line in images.items() if "EpfleetNext=1" in line} == {newest(host)}


def test_and_all_of_them_again(host, next_only):
    _run, _images, back = next_only
    assert back.status == 0, back.output[-3000:]
    for kernel in kernels(host):
        assert LINE.split()[2] in inside_image(host, kernel)[0]
        assert "EpfleetNext" not in inside_image(host, kernel)[0]
