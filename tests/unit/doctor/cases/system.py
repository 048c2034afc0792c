"""Faults of limits, memory, PCI and containers."""

from __future__ import annotations

from layouts import DEBIAN_12, DGX_OS, RHEL_9, SLES_15, UBUNTU_2204, UBUNTU_2404

from .changes import case, device, every, file, intent, without

ROOTLESS = file("proc/self/status", "Name:\tpython3\nCapEff:\t0000000000000000\n")
case(
    "EPD801",
    UBUNTU_2204,
    every(ROOTLESS, lambda tree: tree.memlock("8388608", "unlimited", "infinity")),
    lambda tree: tree.memlock("8388608", "unlimited", "infinity"),
)
case(
    "EPD802",
    RHEL_9,
    lambda tree: tree.memlock("unlimited", "", ""),
    lambda tree: tree.memlock("unlimited", "-1", "infinity"),
)
case(
    "EPD803",
    DEBIAN_12,
    lambda tree: tree.line("proc/sys/kernel/numa_balancing", "1"),
    without("proc/sys/kernel/numa_balancing"),
)
case(
    "EPD804",
    DGX_OS,
    lambda tree: tree.space("0000:17:00.0", acs=0x1D),
    lambda tree: tree.space("0000:17:00.0", acs=0x03),
)
case(
    "EPD805",
    UBUNTU_2404,
    device(0, "iommu_group/type", "DMA-FQ"),
    device(0, "iommu_group/type", "identity"),
)
case(
    "EPD806",
    SLES_15,
    every(file("run/.containerenv", ""), without("dev/infiniband")),
    file("run/.containerenv", ""),
)
case("EPD807", UBUNTU_2204, every(file(".dockerenv", ""), ROOTLESS), file(".dockerenv", ""))
case(
    "EPD808",
    RHEL_9,
    lambda tree: [tree.space(f"0000:{bus}:00.0", size=64) for bus in ("16", "36")],
    every(
        lambda tree: [tree.space(f"0000:{bus}:00.0", size=64) for bus in ("16", "36")],
        intent(mode="off"),
    ),
)
