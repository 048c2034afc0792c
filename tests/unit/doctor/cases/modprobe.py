"""Faults of driver options: intended, written, overridden, live."""

from __future__ import annotations

from hosts import OUR_FILE
from layouts import DEBIAN_12, DGX_OS, RHEL_9, SLES_15, UBUNTU_2204, UBUNTU_2404
from trees import OUR_LINE

from .changes import DWORDS, STREAM, case, every, file, images, live

case("EPD101", UBUNTU_2204, live(stream="0", dwords=""), live(dwords="RMx=2;PeerMappingOverride=1"))
case(
    "EPD102",
    RHEL_9,
    every(file(OUR_FILE, "# nothing\n"), images("# nothing")),
    every(
        file(
            OUR_FILE, 'options nvidia NVreg_RegistryDwords="PeerMappingOverride=0x1;X=2"\n' + STREAM
        ),
        images('options nvidia NVreg_RegistryDwords="PeerMappingOverride=1;X=2"\n' + STREAM),
        live(dwords="PeerMappingOverride=0x1;X=2"),
    ),
)
case(
    "EPD103",
    DEBIAN_12,
    every(
        file("etc/modprobe.d/zzz-gpu.conf", DWORDS.format("RMForceX=1;")),
        images(OUR_LINE + "\n" + DWORDS.format("RMForceX=1;")),
    ),
    every(
        file("etc/modprobe.d/zzz-gpu.conf", DWORDS.format("RMForceX=1;PeerMappingOverride=1")),
        images(OUR_LINE + "\n" + DWORDS.format("RMForceX=1;PeerMappingOverride=1")),
        file(OUR_FILE, STREAM),
    ),
)
case(
    "EPD104",
    SLES_15,
    lambda tree: tree.cmdline("nvidia.NVreg_RegistryDwords=RMForceX=1"),
    lambda tree: tree.cmdline("nvidia-drm.modeset=1 nvidia.NVreg_EnableStreamMemOPs=1"),
)
case(
    "EPD105",
    DGX_OS,
    every(
        file("etc/modprobe.d/nvidia.conf", DWORDS.format("RMForceX=1;")),
    ),
    every(file("etc/modprobe.d/nvidia.conf", DWORDS.format("PeerMappingOverride=1"))),
)
case(
    "EPD106",
    UBUNTU_2404,
    every(
        file(OUR_FILE, STREAM + "options nvidia NVreg_RegistryDwords='PeerMappingOverride=1;'\n"),
        images(STREAM + "options nvidia NVreg_RegistryDwords='PeerMappingOverride=1;'"),
    ),
    every(
        file(
            OUR_FILE, STREAM + "options nvidia NVreg_RegistryDwords=PeerMappingOverride=1;X=0x2\n"
        ),
        images(STREAM + 'options nvidia NVreg_RegistryDwords="PeerMappingOverride=1; X=2"'),
        live(dwords="PeerMappingOverride=1;X=2"),
    ),
    also=("EPD102",),
)
case(
    "EPD107",
    UBUNTU_2204,
    every(
        file(OUR_FILE, OUR_LINE + " # needed by NVSHMEM\n"),
        images(OUR_LINE + " # needed by NVSHMEM"),
    ),
    file(OUR_FILE, "# needed by NVSHMEM\n" + OUR_LINE + "\n"),
)
case(
    "EPD108",
    RHEL_9,
    every(
        file("usr/lib/modprobe.d/nvidia.conf", "blacklist nouveau\n"),
        file("etc/modprobe.d/nvidia.conf", "options nvidia NVreg_EnableStreamMemOPs=1\n"),
    ),
    every(
        file("usr/lib/modprobe.d/nvidia.conf", "blacklist nouveau\n"),
        file("etc/modprobe.d/nvidia-more.conf", "options nvidia NVreg_EnableStreamMemOPs=1\n"),
        file("usr/lib/modprobe.d/dist.conf", ""),
        file("etc/modprobe.d/dist.conf", "blacklist pcspkr\n"),
    ),
)
case(
    "EPD109",
    DEBIAN_12,
    file("etc/modprobe.d/nvidia", OUR_LINE + "\n"),
    file("etc/modprobe.d/nvidia.conf.bak", "# " + OUR_LINE + "\n"),
)
case(
    "EPD110",
    DGX_OS,
    file("etc/modprobe.d/nvidia.conf", OUR_LINE + "\n" + OUR_LINE + "\n"),
    file("etc/modprobe.d/nvidia.conf", OUR_LINE + "\n"),
)
case(
    "EPD111",
    SLES_15,
    file("etc/modprobe.d/off.conf", "install nvidia /bin/false\n"),
    file("etc/modprobe.d/off.conf", "install nvidia_drm /bin/false\nblacklist nvidia\n"),
)
case(
    "EPD112",
    UBUNTU_2204,
    file("run/nvidia/driver/etc/os-release", "ID=ubuntu\n"),
    file("run/nvidia/toolkit/.ready", ""),
)
case(
    "EPD113",
    UBUNTU_2404,
    file(
        "etc/default/grub",
        "GRUB_DEFAULT=0\n"
        "GRUB_CMDLINE_LINUX_DEFAULT='quiet nvidia.NVreg_RegistryDwords=\"RMForceX=1\"'\n",
    ),
    every(
        file(
            "etc/default/grub",
            'GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX="nvidia.NVreg_EnableStreamMemOPs=0"\n',
        ),
        file(
            "etc/default/grub.d/50-gpu.cfg",
            'GRUB_CMDLINE_LINUX="nvidia.NVreg_EnableStreamMemOPs=1 nvidia-drm.modeset=1"\n',
        ),
    ),
)
