"""What a rollout left on each host, read on the host itself."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

from conftest import BACKENDS

testinfra_hosts = BACKENDS

OPTIONS = "/etc/modprobe.d/zz-epfleet-nvidia.conf"
LINE = 'options nvidia NVreg_EnableStreamMemOPs=1 NVreg_RegistryDwords="PeerMappingOverride=1;"'
NVSHMEM = "/opt/epfleet/nvshmem/current/nvidia/nvshmem"
VENV = "/opt/epfleet/venv"


def lines(text: str) -> list[str]:
    """The lines that modprobe reads."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_option_file_holds_the_options(host):
    file = host.file(OPTIONS)
    assert lines(file.content_string) == [LINE]
    assert (file.user, file.group, file.mode) == ("root", "root", 0o644)


def test_modprobe_takes_the_options(host):
    assert LINE in host.check_output("modprobe --showconfig").splitlines()


def test_every_installed_kernel_has_an_image_with_the_options(host):
    kernels = host.check_output("ls /lib/modules").split()
    assert kernels
    for kernel in kernels:
        unpacked = host.check_output("mktemp --directory")
        host.check_output("unmkinitramfs /boot/initrd.img-%s %s", kernel, unpacked)
        found = host.check_output("find %s -path '*%s'", unpacked, OPTIONS).split()
        assert len(found) == 1, kernel
        assert lines(host.file(found[0]).content_string) == [LINE]
        host.check_output("rm -r %s", unpacked)


def test_host_rebooted_exactly_once(host, boots):
    """Once over check, converge and idempotence; the journal inside agrees with the outside."""
    assert len(boots) == 2
    journal = json.loads(host.check_output("journalctl --list-boots --output=json"))
    assert len(journal) == 2


def test_record_names_the_boot_before_the_change(host):
    record = json.loads(host.file("/var/lib/epfleet/changes.json").content_string)
    journal = json.loads(host.check_output("journalctl --list-boots --output=json"))
    identities = [boot["boot_id"] for boot in journal]
    assert record["boot_id"].replace("-", "") == identities[0]


def test_nvshmem_has_its_own_prefix(host):
    header = host.check_output(f"cat {NVSHMEM}/include/non_abi/nvshmem_version.h")
    for name, value in (("MAJOR", 3), ("MINOR", 4), ("PATCH", 5)):
        assert f"NVSHMEM_VENDOR_{name}_VERSION {value}" in " ".join(header.split(" "))
    assert host.file(f"{NVSHMEM}/lib/libnvshmem_host.so.3").exists


def test_the_wheel_of_its_kind_is_installed(host, wheels):
    """Byte for byte the core of the wheel that came back to the controller for this C library."""
    libc = host.check_output("getconf GNU_LIBC_VERSION").replace(" ", "-")
    (ours,) = [each for each in wheels if each["inputs"]["libc"] == libc]
    with zipfile.ZipFile(ours["path"] / ours["file"]) as wheel:
        (core,) = [name for name in wheel.namelist() if Path(name).match("ep_runtime/_core.*.so")]
        expected = hashlib.sha256(wheel.read(core)).hexdigest()
    site = host.check_output(
        f"{VENV}/bin/python -c 'import sysconfig as s; print(s.get_path(\"purelib\"))'"
    )
    assert host.file(f"{site}/{core}").sha256sum == expected


def test_runtime_imports(host):
    assert host.run(f"{VENV}/bin/python -c 'import ep_runtime'").rc == 0


def test_packages_fit_each_other(host):
    checked = host.run(f"{VENV}/bin/python -m pip check")
    assert (checked.rc, checked.stdout.strip()) == (0, "No broken requirements found.")


def test_no_rank_is_left_running(host):
    assert host.run("pgrep -f 'ep_runtime[.]bench'").rc == 1
