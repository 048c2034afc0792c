"""Faults of the NVIDIA driver."""

from __future__ import annotations

from hosts import DRIVER, SECURE_BOOT
from layouts import DEBIAN_12, DGX_OS, RHEL_9, SLES_15, UBUNTU_2204, UBUNTU_2404

from .changes import (
    bound,
    case,
    device,
    dkms_log,
    every,
    file,
    log,
    not_loaded,
    with_older_driver_first,
)

case(
    "EPD301",
    UBUNTU_2404,
    not_loaded,
    every(not_loaded, file(".dockerenv", "")),
)
case(
    "EPD302",
    DEBIAN_12,
    bound(0, "nouveau"),
    lambda tree: tree.put(**{"proc/modules": "nouveau 1 0 - Live 0\n"}),
)
case(
    "EPD303",
    RHEL_9,
    every(
        lambda tree: tree.version("510.39.01"),
        lambda tree: tree.library("libcuda.so.1", "libcuda.so.510.39.01"),
        lambda tree: tree.modules(tree.layout.kernel, "510.39.01"),
    ),
    every(
        lambda tree: tree.version("510.40.3"),
        lambda tree: tree.library("libcuda.so.1", "libcuda.so.510.40.3"),
        lambda tree: tree.modules(tree.layout.kernel, "510.40.3"),
    ),
)
case(
    "EPD304",
    UBUNTU_2204,
    lambda tree: tree.library("libcuda.so.1", "libcuda.so.580.178.10"),
    every(
        lambda tree: tree.remove(f"{tree.layout.library_directory}/libcuda"),
        file("usr/lib/x86_64-linux-gnu/libcuda.so.1", b""),
    ),
)
case(
    "EPD305",
    SLES_15,
    lambda tree: tree.modules(tree.layout.kernel, "580.178.10"),
    lambda tree: tree.modules(tree.layout.older_kernel, "580.178.10"),
)
case(
    "EPD306",
    DEBIAN_12,
    every(
        with_older_driver_first,
        lambda tree: dkms_log("nvidia/580.159.04", tree.layout.kernel, "nv.c:1:2: error: x")(tree),
    ),
    lambda tree: tree.without_module(tree.layout.older_kernel, "nvidia"),
)
case(
    "EPD307",
    UBUNTU_2404,
    dkms_log("nvidia/580.159.04", "6.14.0-1-generic", "nv.c:7:1: fatal error: linux/x.h: No such"),
    dkms_log("nvidia/580.159.04", "6.14.0-1-generic", "  CC [M] nv-error.o", "warning: unused"),
)
case(
    "EPD308",
    RHEL_9,
    file(SECURE_BOOT, b"\6\0\0\0\1"),
    every(
        file(SECURE_BOOT, b"\6\0\0\0\1"),
        lambda tree: tree.modules(tree.layout.kernel, signed=True),
    ),
)
case(
    "EPD309",
    UBUNTU_2204,
    every(
        lambda tree: tree.version(DRIVER, "proprietary"),
        device(0, "device", "0x2901"),
    ),
    every(lambda tree: tree.version(DRIVER, "proprietary"), device(0, "device", "0x2330")),
)
case(
    "EPD310",
    DGX_OS,
    lambda tree: tree.fabric_manager(DRIVER, ""),
    lambda tree: tree.remove("sys/fs/cgroup"),
)
case(
    "EPD311",
    DGX_OS,
    lambda tree: tree.fabric_manager("580.126.16", "4711"),
    lambda tree: tree.remove("var/lib/dpkg/status"),
)
case(
    "EPD312",
    SLES_15,
    lambda tree: tree.fabric_manager(DRIVER, ""),
    lambda tree: tree.fabric_manager(None, ""),
)
case(
    "EPD313",
    DEBIAN_12,
    log("[  99.1] NVRM: Xid (PCI:0000:18:00): 79, pid=1, GPU has fallen off the bus."),
    log("[  99.1] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64"),
)
case(
    "EPD314",
    UBUNTU_2404,
    every(not_loaded, log("[ 5.0] nvidia: disagrees about version of symbol module_layout")),
    every(
        log("[ 5.0] nvidia: disagrees about version of symbol module_layout"),
    ),
    also=("EPD301",),
)
case(
    "EPD315",
    RHEL_9,
    lambda tree: tree.node("nvidia-uvm", 511),
    lambda tree: tree.remove("dev/nvidia-uvm"),
)
case(
    "EPD316",
    UBUNTU_2204,
    lambda tree: tree.remove(f"proc/driver/nvidia/gpus/{tree.gpus[1]}"),
    lambda tree: tree.remove("proc/driver/nvidia/gpus"),
)
