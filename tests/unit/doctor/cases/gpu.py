"""Faults of GPUs."""

from __future__ import annotations

from hosts import RECORDED
from layouts import DEBIAN_12, DGX_OS, RHEL_9, SLES_15, UBUNTU_2204, UBUNTU_2404

from .changes import bound, case, device, without

case(
    "EPD701", UBUNTU_2204, lambda tree: tree.smi(mig="Enabled"), lambda tree: tree.smi(mig="[N/A]")
)
case("EPD702", RHEL_9, lambda tree: tree.smi(mode="Prohibited"), without(RECORDED + "nvidia-smi"))
case(
    "EPD703",
    SLES_15,
    lambda tree: tree.smi(mode="Exclusive_Process"),
    lambda tree: tree.smi(mode="[Unknown Error]"),
)
case(
    "EPD704",
    DGX_OS,
    device(0, "current_link_width", "8"),
    device(0, "current_link_speed", "2.5 GT/s PCIe"),
)
case(
    "EPD705",
    DEBIAN_12,
    lambda tree: tree.smi(persistence="Disabled"),
    lambda tree: tree.put(
        **{RECORDED + "nvidia-smi": "Failed to initialize NVML: Unknown Error\n"}
    ),
)
case(
    "EPD706",
    UBUNTU_2404,
    bound(1, "vfio-pci"),
    lambda tree: tree.put(
        **{"proc/modules": str(tree.files["proc/modules"]) + "vfio_pci 1 0 - L 0\n"}
    ),
)

case(
    "EPD707",
    RHEL_9,
    lambda tree: tree.nvlink("<inactive>"),
    lambda tree: tree.put(**{RECORDED + "nvidia-smi-nvlink": "Failed to initialize NVML\n"}),
)
