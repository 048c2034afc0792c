"""Faults of GDRCopy."""

from __future__ import annotations

from layouts import DEBIAN_12, DGX_OS, RHEL_9, SLES_15, UBUNTU_2204, UBUNTU_2404

from .changes import case, every, gdrdrv, intent, kernel_release, log, nvshmem_copy, unload

case(
    "EPD401",
    DEBIAN_12,
    every(intent(mode="cpu"), nvshmem_copy("3.3.9"), unload("gdrdrv")),
    every(intent(mode="cpu"), nvshmem_copy("3.3.9")),
)
case(
    "EPD402",
    UBUNTU_2404,
    every(intent(mode="cpu"), unload("gdrdrv")),
    every(intent(mode="gpu"), unload("gdrdrv")),
)
case(
    "EPD403",
    SLES_15,
    lambda tree: tree.node("gdrdrv", 235),
    every(lambda tree: tree.node("gdrdrv", 235), unload("gdrdrv")),
)
case(
    "EPD404",
    RHEL_9,
    lambda tree: tree.module(
        tree.layout.kernel,
        "gdrdrv",
        version="2.5.1",
        license="Dual MIT/GPL",
        depends="nv-p2p-dummy",
        vermagic=tree.layout.kernel,
    ),
    lambda tree: tree.module(
        tree.layout.older_kernel,
        "gdrdrv",
        version="2.5.1",
        license="Dual MIT/GPL",
        depends="nv-p2p-dummy",
        vermagic=tree.layout.older_kernel,
    ),
)
case(
    "EPD405",
    DGX_OS,
    lambda tree: tree.without_module(tree.layout.kernel, "gdrdrv"),
    lambda tree: tree.without_module(tree.layout.older_kernel, "gdrdrv"),
)
case("EPD406", UBUNTU_2204, gdrdrv("2.4", "2.5.1"), gdrdrv("2.5", "2.5.1"), also=("EPD407",))
case(
    "EPD407",
    DEBIAN_12,
    every(kernel_release("6.16.3-amd64"), gdrdrv("2.5.1")),
    every(kernel_release("6.16.3-amd64"), gdrdrv("2.5.2", "2.5.2")),
)
case(
    "EPD408",
    UBUNTU_2404,
    every(
        unload("gdrdrv"),
        log("[ 8.1] gdrdrv: disagrees about version of symbol nvidia_p2p_get_pages"),
    ),
    log("[ 8.1] gdrdrv: disagrees about version of symbol nvidia_p2p_get_pages"),
)
