"""Readers of /proc, /sys, NVSHMEM, CUDA and GDRCopy against small trees."""

from __future__ import annotations

import os

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host import (
    cuda,
    gdrcopy,
    nvshmem,
    procfs,
)
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.root import (
    HostRoot,
)
from trees import gpu, kernel, loaded, write

HEADER = """#ifndef NVSHMEM_VERSION_H
#define NVSHMEM_VENDOR_MAJOR_VERSION 3
#define NVSHMEM_VENDOR_MINOR_VERSION 4
#define NVSHMEM_VENDOR_PATCH_VERSION {patch}
"""


def test_params_have_the_names_of_the_driver(tmp_path):
    params = procfs.driver_params(write(tmp_path, loaded("1", "PeerMappingOverride=1;")))
    assert params["EnableStreamMemOPs"] == "1"
    assert params["RegistryDwords"] == "PeerMappingOverride=1;"


def test_no_params_without_a_loaded_module(tmp_path):
    assert procfs.driver_params(HostRoot(str(tmp_path))) is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build",
            ("580.159.04", "open"),
        ),
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  Tue Jul  1 09:39:48 UTC",
            ("535.261.03", "proprietary"),
        ),
        ("nonsense", (None, "proprietary")),
    ],
)
def test_driver_version(tmp_path, line, expected):
    host = write(tmp_path, {"proc/driver/nvidia/version": line + "\n"})
    assert procfs.driver_version(host) == expected


def test_gpus_are_display_controllers_of_nvidia(tmp_path):
    other = gpu("0000:02:00.0")
    other["sys/bus/pci/devices/0000:02:00.0/vendor"] = "0x1002\n"
    host = write(
        tmp_path,
        {
            **gpu("0000:17:00.0"),
            **gpu("0000:18:00.0", "0x030000"),
            **gpu("0000:19:00.0", "0x068000"),  # NVSwitch: a bridge
            **gpu("0000:1a:00.1", "0x040300"),  # the audio function of a display card
            **other,
            "proc/driver/nvidia/gpus/0000:17:00.0/information": (
                "Model: \t\t NVIDIA H200\nIRQ:   \t\t 1\nGPU UUID: \t GPU-1\n"
            ),
        },
    )
    found = procfs.gpus(host)
    assert [item["pci"] for item in found] == ["0000:17:00.0", "0000:18:00.0"]
    assert (found[0]["name"], found[0]["uuid"], found[0]["numa_node"]) == (
        "NVIDIA H200",
        "GPU-1",
        1,
    )
    assert found[1]["name"] is None


def test_gpus_of_a_container_without_sysfs(tmp_path):
    host = write(tmp_path, {"proc/driver/nvidia/gpus/0000:17:00.0/information": "Model: H200\n"})
    assert [item["name"] for item in procfs.gpus(host)] == ["H200"]


@pytest.mark.parametrize(
    ("release", "expected"),
    [
        ('ID=debian\nVERSION_ID="12"\n', ("debian", "12", "debian")),
        ("ID=ubuntu\nID_LIKE=debian\nVERSION_ID='24.04'", ("ubuntu", "24.04", "debian")),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"', ("rocky", "9.4", "redhat")),
        ('ID="opensuse-leap"\nID_LIKE="suse opensuse"', ("opensuse-leap", None, "suse")),
        ("ID=arch", ("arch", None, None)),
        ("", (None, None, None)),
    ],
)
def test_operating_system(tmp_path, release, expected):
    found = procfs.operating_system(write(tmp_path, {"etc/os-release": release}))
    assert (found["id"], found["version_id"], found["family"]) == expected


def test_kernels_are_directories_with_a_module_index(tmp_path):
    host = write(tmp_path, {**kernel("1.0"), "lib/modules/2.0/build/Makefile": ""})
    assert procfs.kernels(host) == ["1.0"]


def test_boot_and_secure_boot(tmp_path):
    variable = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    host = write(
        tmp_path,
        {
            "proc/stat": "cpu 1 2\nbtime 1700000000\n",
            "proc/sys/kernel/random/boot_id": "abc\n",
            variable: b"\x06\0\0\0\x01",
        },
    )
    assert procfs.boot(host) == {"boot_id": "abc", "boot_time": 1700000000}
    assert procfs.secure_boot(host) is True
    assert procfs.secure_boot(HostRoot(str(tmp_path / "proc"))) is None


def test_files_of_the_running_system_are_readable():
    """/proc/sys refuses reads of 4 MiB and more, so the reader must ask for less."""
    assert procfs.boot(HostRoot())["boot_id"]


def wheel(prefix: str, version: str, patch: int, major: int = 13) -> dict[str, str]:
    return {
        f"{prefix}/nvidia/nvshmem/include/non_abi/nvshmem_version.h": HEADER.format(patch=patch),
        f"{prefix}/nvidia_nvshmem_cu{major}-{version}.dist-info/METADATA": "",
    }


def test_what_the_nvshmem_role_keeps_beside_the_copies(tmp_path):
    prefix = "/opt/epfleet/nvshmem"
    host = HostRoot(str(tmp_path))
    assert nvshmem.current(host, prefix) == {"prefix": prefix, "version": None, "environment": None}
    write(tmp_path, {f"{prefix[1:]}/nvshmem.env": "A=1\n"})
    file = tmp_path / prefix[1:] / "nvshmem.env"
    (file.parent / "current").symlink_to("3.4.5")
    file.chmod(0o644)
    found = nvshmem.current(host, prefix)
    assert found["version"] == "3.4.5"
    assert found["environment"] == ("A=1\n" if file.stat().st_uid == 0 else None)
    file.chmod(0o666)
    assert nvshmem.current(host, prefix)["environment"] is None


def test_nvshmem_copies(tmp_path):
    host = write(
        tmp_path,
        {
            **wheel("opt/epfleet/nvshmem/3.4.5", "3.4.5", 5),
            **wheel("opt/epfleet/venv/lib/python3.11/site-packages", "3.4.5", 5, 12),
            "opt/nvidia/nvshmem/include/nvshmem_version.h": HEADER.format(patch=9),
        },
    )
    (tmp_path / "opt/epfleet/nvshmem/current").symlink_to("3.4.5")
    assert [
        (item["path"], item["version"], item["cuda_major"])
        for item in nvshmem.copies(host, "/opt/epfleet/nvshmem")
    ] == [
        ("/opt/epfleet/nvshmem/3.4.5/nvidia/nvshmem", "3.4.5", 13),
        ("/opt/nvidia/nvshmem", "3.4.9", None),
        ("/opt/epfleet/venv/lib/python3.11/site-packages/nvidia/nvshmem", "3.4.5", 12),
    ]


def test_the_header_speaks_before_the_package_data(tmp_path):
    host = write(tmp_path, wheel("p", "3.4.5", 7))
    assert nvshmem.read_copy(host, "/p/nvidia/nvshmem")["version"] == "3.4.7"


def test_half_a_copy_is_no_copy(tmp_path):
    host = write(tmp_path, {"p/nvidia/nvshmem/include/non_abi/nvshmem_version.h": "#define X\n"})
    assert nvshmem.read_copy(host, "/p/nvidia/nvshmem") is None


@pytest.mark.parametrize("version", ["", "3", "3.x", "3.4.5rc1", "latest", "3..4"])
def test_no_versions(version):
    with pytest.raises(ValueError, match="is not a version"):
        nvshmem.version_key(version)


def test_versions_compare_by_numbers():
    assert nvshmem.version_key("3.10.1") > nvshmem.version_key("3.3.24")


@pytest.mark.parametrize(
    ("files", "driver", "major"),
    [
        ({}, None, None),
        ({}, "580.159.04", 13),
        ({}, "535.261.03", 12),
        ({}, "470.1", 11),
        ({}, "390.1", None),
        (
            {"bin/nvcc": "", "include/cuda.h": "#define CUDA_VERSION 12080\n"},
            "580.159.04",
            12,
        ),
        ({"bin/nvcc": "", "version.json": '{"cuda": {"version": "13.0.1"}}'}, None, 13),
        ({"bin/nvcc": "", "version.json": '{"cuda": []}'}, "535.1", 12),
        ({"version.json": "not json"}, None, None),
    ],
)
def test_cuda_major(tmp_path, files, driver, major):
    host = write(tmp_path, {f"usr/local/cuda/{name}": text for name, text in files.items()})
    assert cuda.facts(host, driver)["major"] == major


def test_gdrcopy_without_a_node_is_not_usable(tmp_path):
    host = write(
        tmp_path,
        {
            "sys/module/gdrdrv/version": "2.5\n",
            "proc/devices": "Character devices:\n  1 mem\n510 gdrdrv\n\nBlock devices:\n  7 loop\n",
            "usr/lib/x86_64-linux-gnu/libgdrapi.so.2": "",
        },
    )
    found = gdrcopy.facts(host)
    assert (found["loaded"], found["version"], found["major"]) == (True, "2.5", 510)
    assert found["device_ok"] is False
    assert found["library"] == "/usr/lib/x86_64-linux-gnu/libgdrapi.so.2"


def test_an_old_node_with_another_major_is_not_usable(tmp_path, monkeypatch):
    host = write(tmp_path, {"proc/devices": "510 gdrdrv\n"})

    class Status:
        st_mode = 0o020666
        st_rdev = os.makedev(511, 0)

    monkeypatch.setattr(host, "stat", lambda _path: Status)
    assert gdrcopy.facts(host)["device_ok"] is False
    Status.st_rdev = os.makedev(510, 0)
    assert gdrcopy.facts(host)["device_ok"] is True
