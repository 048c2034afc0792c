"""Faults of RDMA devices."""

from __future__ import annotations

from hosts import DRIVER, Tree
from layouts import DEBIAN_12, DGX_OS, RHEL_9, SLES_15, UBUNTU_2204, UBUNTU_2404

from .changes import PEERMEM_REFUSED, at, case, device, environment, every, intent, log, unload

case(
    "EPD601",
    UBUNTU_2204,
    lambda tree: (
        tree.links.update(
            {
                f"sys/devices/{tree.place(nic)}/driver": "/sys/bus/pci/drivers/irdma"
                for nic in tree.nics
            }
        ),
    ),
    lambda tree: tree.links.update(
        {f"sys/devices/{tree.place(tree.nics[0])}/driver": "/sys/bus/pci/drivers/irdma"}
    ),
)
case(
    "EPD602",
    RHEL_9,
    lambda tree: tree.port(1, state="1: DOWN"),
    every(lambda tree: tree.port(1, state="1: DOWN"), intent(mode="off")),
)
case(
    "EPD603",
    DEBIAN_12,
    lambda tree: tree.port(1, rate="200 Gb/sec (2X NDR)"),
    lambda tree: (
        tree.port(0, rate="200 Gb/sec (4X HDR)"),
        tree.port(1, rate="200 Gb/sec (2X NDR)"),
    ),
)
case(
    "EPD604",
    UBUNTU_2404,
    lambda tree: tree.gids(("IB/RoCE v1", "RoCE v2")),
    lambda tree: tree.gids(("IB/RoCE v1", "RoCE v2", "RoCE v2")),
)
case(
    "EPD605",
    SLES_15,
    environment(NVSHMEM_IB_GID_INDEX="2"),
    environment(NVSHMEM_IB_GID_INDEX="3"),
)
case(
    "EPD606",
    DEBIAN_12,
    device(0, "net/ens0np0/mtu", "1500", "nic"),
    device(0, "net/ens0np0/mtu", "4200", "nic"),
)
case(
    "EPD607",
    DGX_OS,
    every(
        at("nic", 0, "pci0000:95/0000:95:01.0"),
        at("nic", 1, "pci0000:95/0000:95:02.0"),
    ),
    every(
        at("nic", 0, "pci0000:15/0000:15:02.0"),
        at("nic", 1, "pci0000:35/0000:35:02.0"),
    ),
)


def gpus_below_one_switch(tree: Tree) -> None:
    """The second GPU beside the first, far from its own NIC."""
    switch = tree.place(tree.gpus[0]).rsplit("/", 2)[0]
    at("gpu", 1, switch + "/0000:17:02.0")(tree)


case(
    "EPD608",
    UBUNTU_2204,
    gpus_below_one_switch,
    every(gpus_below_one_switch, lambda tree: tree.port(1, state="1: DOWN")),
)
case(
    "EPD609",
    DEBIAN_12,
    every(unload("nvidia_peermem"), lambda tree: tree.version(DRIVER, "proprietary")),
    unload("nvidia_peermem"),
)
case(
    "EPD610",
    UBUNTU_2404,
    every(
        unload("nvidia_peermem"),
        log(PEERMEM_REFUSED),
    ),
    log(PEERMEM_REFUSED),
)
case(
    "EPD611",
    RHEL_9,
    lambda tree: tree.put(
        **{"proc/modules": str(tree.files["proc/modules"]) + "nv_peer_mem 1 0 - L 0\n"}
    ),
    lambda tree: tree.put(**{"proc/modules": "nvidia_peermem 1 0 - Live 0x0\n"}),
)
case(
    "EPD612",
    SLES_15,
    device(1, "current_link_width", "8", "nic"),
    device(1, "current_link_speed", "64.0 GT/s PCIe", "nic"),
)
case(
    "EPD613",
    DGX_OS,
    lambda tree: tree.space(tree.nics[0], relaxed=False),
    lambda tree: tree.space(tree.gpus[0], relaxed=False),
)
