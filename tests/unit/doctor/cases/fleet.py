"""One host of three that differs from the others."""

from __future__ import annotations

from hosts import DRIVER, VENV
from layouts import DEBIAN_12, DGX_OS, RHEL_9, SLES_15, UBUNTU_2204, UBUNTU_2404

from .changes import (
    device,
    environment,
    every,
    file,
    fleet_case,
    intent,
    kernel_release,
    nvshmem_copy,
    without,
)

fleet_case(
    "EPD901",
    UBUNTU_2204,
    every(
        lambda tree: tree.version("580.126.16"),
        lambda tree: tree.modules(tree.layout.kernel, "580.126.16"),
        lambda tree: tree.library("libcuda.so.1", "libcuda.so.580.126.16"),
    ),
    lambda tree: tree.version(DRIVER),
)
fleet_case("EPD902", DGX_OS, nvshmem_copy("3.6.5"), without("opt/epfleet/nvshmem"))
fleet_case(
    "EPD903",
    RHEL_9,
    lambda tree: tree.line(f"{tree.nic_directory(0)}/fw_ver", "28.41.1000"),
    lambda tree: (
        tree.line(f"{tree.nic_directory(0)}/fw_ver", "20.41.1000"),
        tree.line(f"{tree.nic_directory(0)}/board_id", "MT_0000000223"),
        tree.line(f"{tree.nic_directory(1)}/board_id", "MT_0000000223"),
        tree.line(f"{tree.nic_directory(1)}/fw_ver", "20.41.1000"),
    ),
)
fleet_case("EPD904", DEBIAN_12, kernel_release("6.1.0-60-amd64"), lambda tree: None)
fleet_case(
    "EPD905",
    SLES_15,
    every(
        nvshmem_copy("3.5.21", major=12),
        file(f"{VENV}/torch/version.py", "cuda: str = '12.9'\n"),
    ),
    file(f"{VENV}/torch/version.py", "cuda: str = '13.1'\n"),
)
fleet_case("EPD906", UBUNTU_2404, device(0, "device", "0x2330"), device(0, "device", "0x2335"))
fleet_case(
    "EPD907",
    DEBIAN_12,
    lambda tree: [
        tree.line(f"{tree.nic_directory(i)}/ports/1/link_layer", "InfiniBand") for i in range(2)
    ],
    every(intent(mode="gpu")),
)
fleet_case(
    "EPD908",
    RHEL_9,
    every(
        without(f"{VENV}/ep_runtime-"),
        file(f"{VENV}/ep_runtime-0.2.0.dist-info/METADATA", ""),
    ),
    without(f"{VENV}/ep_runtime-"),
)
fleet_case(
    "EPD909",
    UBUNTU_2404,
    every(
        environment(NVSHMEM_IB_GID_INDEX="5"),
        lambda tree: tree.gids(
            ("IB/RoCE v1", "RoCE v2", "IB/RoCE v1", "IB/RoCE v1", "IB/RoCE v1", "RoCE v2")
        ),
    ),
    lambda tree: tree.gids(
        ("IB/RoCE v1", "RoCE v2", "IB/RoCE v1", "IB/RoCE v1", "IB/RoCE v1", "RoCE v2")
    ),
)
fleet_case(
    "EPD910",
    RHEL_9,
    lambda tree: tree.line("sys/module/mlx5_core/version", "24.10-1.1.4"),
    without("sys/module/mlx5_core"),
)
