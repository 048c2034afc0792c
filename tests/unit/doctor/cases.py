"""Two fixtures for each rule: a host with exactly that fault, and a near miss without it.

``also`` names rules that the same fault must fire too, because two rules look at one thing from two
sides. Everything else that fires is a mistake.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

from hosts import DRIVER, NVSHMEM, OUR_FILE, RECORDED, SECURE_BOOT, VENV, Tree
from layouts import (
    DEBIAN_12,
    DGX_OS,
    RHEL_9,
    SLES_15,
    UBUNTU_2204,
    UBUNTU_2404,
    Layout,
)
from trees import OUR_LINE

Change = Callable[[Tree], object]
DWORDS = 'options nvidia NVreg_RegistryDwords="{0}"\n'
PEERMEM_REFUSED = (
    "[ 9.9] nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client"
)
STREAM = "options nvidia NVreg_EnableStreamMemOPs=1\n"


@dataclass(frozen=True)
class Case:
    """The fixtures of one rule."""

    rule: str
    layout: Layout
    fires: Change
    near: Change
    also: tuple[str, ...] = ()


CASES: list[Case] = []
FLEET_CASES: list[Case] = []


def case(
    rule: str, layout: Layout, fires: Change, near: Change, also: tuple[str, ...] = ()
) -> None:
    """Add the fixtures of one rule."""
    CASES.append(Case(rule, layout, fires, near, also))


def fleet_case(rule: str, layout: Layout, fires: Change, near: Change) -> None:
    """The changes are made to one host of three."""
    FLEET_CASES.append(Case(rule, layout, fires, near))


def every(*changes: Change) -> Change:
    """Several changes as one."""

    def change(tree: Tree) -> None:
        for item in changes:
            item(tree)

    return change


def file(path: str, content: str | bytes) -> Change:
    """One file with this content."""
    return lambda tree: tree.files.__setitem__(path, content)


def without(prefix: str) -> Change:
    """Without the files whose paths begin so."""
    return lambda tree: tree.remove(prefix)


def live(stream: str = "1", dwords: str = "PeerMappingOverride=1;") -> Change:
    """What the loaded driver has."""
    return lambda tree: tree.parameters.update(stream=stream, dwords=dwords)


def images(options: str, older: bool = True) -> Change:
    """What the images hold."""

    def change(tree: Tree) -> None:
        tree.images[tree.layout.kernel] = options
        if older:
            tree.images[tree.layout.older_kernel] = options

    return change


def intent(**given: object) -> Change:
    """What the roles intend."""
    return lambda tree: tree.intent.update(given)


def environment(**variables: str) -> Change:
    """Variables of every login."""
    return lambda tree: tree.environment(**variables)


def log(*lines: str) -> Change:
    """Lines of the kernel's log."""
    return lambda tree: tree.log(*lines)


def device(i: int, name: str, value: str, kind: str = "gpu") -> Change:
    """A sysfs file of GPU or NIC ``i``."""

    def change(tree: Tree) -> None:
        address = (tree.gpus if kind == "gpu" else tree.nics)[i]
        tree.line(f"sys/devices/{tree.place(address)}/{name}", value)

    return change


def bound(i: int, driver: str) -> Change:
    """Another driver holds GPU ``i``, which the NVIDIA driver then does not list."""

    def change(tree: Tree) -> None:
        place = tree.place(tree.gpus[i])
        tree.links[f"sys/devices/{place}/driver"] = f"/sys/bus/pci/drivers/{driver}"
        tree.remove(f"proc/driver/nvidia/gpus/{tree.gpus[i]}")

    return change


def not_loaded(tree: Tree) -> None:
    """No NVIDIA driver in the kernel."""
    tree.remove("sys/module/nvidia")
    tree.remove("proc/driver/nvidia")
    tree.remove(RECORDED + "nvidia-smi")


def unload(name: str) -> Change:
    """One module less in the kernel."""
    return without(f"sys/module/{name}")


def gdrdrv(version: str, library: str = "2.5.1") -> Change:
    """Versions of the loaded module and of the library."""

    def change(tree: Tree) -> None:
        tree.line("sys/module/gdrdrv/version", version)
        tree.library("libgdrapi.so.2", f"libgdrapi.so.{library}")

    return change


def nvshmem(version: str, **named: object) -> Change:
    """The one NVSHMEM of the host, torch's own, of this version."""

    def change(tree: Tree) -> None:
        tree.remove("opt/epfleet/nvshmem")
        tree.remove(f"{VENV}/nvidia")
        tree.nvshmem(f"{VENV}/nvidia/nvshmem", version, **named)
        major = named.get("major", 13)
        pin = f"Requires-Dist: nvidia-nvshmem-cu{major}=={version}\n"
        tree.files[f"{VENV}/torch-2.13.0.dist-info/METADATA"] = pin

    return change


def renamed(prefix: str) -> Change:
    """The RDMA devices under other names."""

    def change(tree: Tree) -> None:
        for names in (tree.files, tree.links):
            for name in [name for name in names if "/infiniband/mlx5_" in name]:
                content = names.pop(name)
                if isinstance(content, str):
                    content = content.replace("/infiniband/mlx5_", f"/infiniband/{prefix}")
                names[name.replace("/infiniband/mlx5_", f"/infiniband/{prefix}")] = content

    return change


def kernel_release(release: str) -> Change:
    """Another running kernel, with modules, image and configuration of its own."""

    def change(tree: Tree) -> None:
        tree.line("proc/sys/kernel/osrelease", release)
        tree.files[f"boot/vmlinuz-{release}"] = "kernel\n"
        tree.files[f"boot/config-{release}"] = tree.files[f"boot/config-{tree.layout.kernel}"]
        tree.files[f"lib/modules/{release}/modules.order"] = ""
        tree.modules(release)
        tree.images[release] = OUR_LINE
        tree.line("etc/default/grub", f'GRUB_DEFAULT="Linux {release}"')

    return change


def dkms_log(module: str, kernel: str, *lines: str) -> Change:
    """A build that DKMS could not finish."""
    return file(
        f"var/lib/dkms/{module}/build/make.log",
        "\n".join((f"DKMS make.log for {module} for kernel {kernel} (x86_64)", *lines)) + "\n",
    )


def at(address_of: str, i: int, place: str) -> Change:
    """Move a device elsewhere on the bus."""

    def change(tree: Tree) -> None:
        address = (tree.gpus if address_of == "gpu" else tree.nics)[i]
        old, new = tree.place(address), f"{place}/{address}"
        parts = place.split("/")
        for end in range(2, len(parts) + 1):
            tree.bridge("/".join(parts[:end]))
        for names in (tree.files, tree.links):
            for name in [name for name in names if f"/{old}/" in name]:
                names[name.replace(old, new)] = names.pop(name)
        for name, target in [*tree.links.items()]:
            tree.links[name] = target.replace(old, new)

    return change


def with_older_driver_first(tree: Tree) -> None:
    """A newer kernel than the driver's modules are built for."""
    tree.without_module(tree.layout.kernel, "nvidia")
    tree.without_module(tree.layout.kernel, "nvidia-peermem")


# modprobe: options intended, written, overridden, live

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

# initramfs

case("EPD201", RHEL_9, images("# nothing", older=False), images(OUR_LINE + " "), ())
case(
    "EPD202",
    UBUNTU_2404,
    lambda tree: tree.images.update({tree.layout.older_kernel: "# nothing"}),
    every(
        lambda tree: tree.images.pop(tree.layout.older_kernel),
        lambda tree: tree.remove(f"lib/modules/{tree.layout.older_kernel}"),
        lambda tree: tree.put(**{f"boot/initrd.img-{tree.layout.older_kernel}": "gone"}),
    ),
)
case(
    "EPD203",
    DEBIAN_12,
    every(
        lambda tree: tree.images.pop(tree.layout.older_kernel),
        lambda tree: tree.put(**{f"boot/initrd.img-{tree.layout.older_kernel}": b"070701cut"}),
    ),
    file("boot/initrd.img-4.9.0-old", b"070701cut"),
)
case(
    "EPD204",
    UBUNTU_2204,
    file(
        RECORDED + "df",
        "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/a 9 9 0 99% /boot\n",
    ),
    file(
        RECORDED + "df",
        "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/a 9 9 90 9% /boot\n",
    ),
)
case(
    "EPD205",
    SLES_15,
    lambda tree: tree.images.pop(tree.layout.kernel),
    lambda tree: (tree.images.pop(tree.layout.kernel), tree.images.pop(tree.layout.older_kernel)),
)

# driver

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

# gdrcopy

case(
    "EPD401",
    DEBIAN_12,
    every(intent(mode="cpu"), nvshmem("3.3.9"), unload("gdrdrv")),
    every(intent(mode="cpu"), nvshmem("3.3.9")),
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

# nvshmem

case(
    "EPD501",
    RHEL_9,
    every(without("opt/epfleet/nvshmem"), without(f"{VENV}/nvidia")),
    every(without("opt/epfleet/nvshmem"), without(f"{VENV}/nvidia"), intent(mode="off")),
)
case("EPD502", UBUNTU_2204, nvshmem("3.2.5"), nvshmem("3.3.9"))
case(
    "EPD503",
    RHEL_9,
    nvshmem("3.4.5", major=12),
    every(
        nvshmem("3.4.5", major=12),
        file(f"{VENV}/torch/version.py", "cuda: Optional[str] = '12.9'\n"),
    ),
)
case(
    "EPD504",
    DEBIAN_12,
    lambda tree: (
        tree.remove(f"{NVSHMEM}/lib/nvshmem_transport"),
        tree.nvshmem(NVSHMEM, "3.5.21", plugin=3),
    ),
    file(f"{NVSHMEM}/lib/nvshmem_transport_ibgda.so.3", b""),
)
case(
    "EPD505",
    DGX_OS,
    every(
        lambda tree: tree.nvshmem("opt/nvidia/nvshmem", "3.6.5"),
        environment(LD_LIBRARY_PATH="/opt/nvidia/nvshmem/lib"),
    ),
    every(
        lambda tree: tree.nvshmem("opt/nvidia/nvshmem", "3.6.5"),
        environment(LD_LIBRARY_PATH="/usr/local/cuda/lib64"),
        file("etc/ld.so.conf.d/nvshmem.conf", "/opt/nvidia/nvshmem/lib\n"),
    ),
)
case(
    "EPD506",
    UBUNTU_2404,
    lambda tree: tree.remove(f"{tree.layout.library_directory}/libmlx5"),
    lambda tree: (
        tree.remove(f"{tree.layout.library_directory}/libmlx5"),
        tree.put(**{"etc/ld.so.conf.d/ofed.conf": "/opt/mellanox/lib\n"}),
        tree.put(**{"opt/mellanox/lib/libmlx5.so.1": b""}),
    ),
)
case("EPD507", UBUNTU_2204, nvshmem("3.4.5", ibgda=False), nvshmem("3.4.5"))
case("EPD508", SLES_15, nvshmem("3.4.5"), nvshmem("3.3.9"))
case(
    "EPD509",
    DEBIAN_12,
    every(environment(NVSHMEM_QP_DEPTH="512"), intent(num_tokens=256)),
    every(environment(NVSHMEM_QP_DEPTH="1024"), intent(num_tokens=511)),
)
case(
    "EPD510",
    RHEL_9,
    intent(num_ranks=2048, num_experts=256, num_qps_per_rank=64),
    intent(num_ranks=64, num_experts=256, num_qps_per_rank=24),
)
case(
    "EPD511",
    DGX_OS,
    environment(NVSHMEM_HCA_LIST="mlx5_0", NVSHMEM_HCA_PE_MAPPING="mlx5_0:1:1"),
    environment(NVSHMEM_HCA_LIST="mlx5_0"),
)
case(
    "EPD512",
    RHEL_9,
    renamed("ibp25s"),
    every(renamed("ibp25s"), environment(NVSHMEM_HCA_PREFIX="ibp")),
)
case(
    "EPD513",
    UBUNTU_2204,
    environment(NVSHMEM_IB_TRAFFIC_CLASS="106"),
    environment(NVSHMEM_IB_TRAFFIC_CLASS="0"),
)
case(
    "EPD514",
    DGX_OS,
    environment(NVSHMEM_IBGDA_NIC_HANDLER="cpu"),
    environment(NVSHMEM_IBGDA_NIC_HANDLER="auto"),
)
case(
    "EPD515",
    UBUNTU_2404,
    lambda tree: tree.put(
        **{f"{VENV}/torch-2.13.0.dist-info/METADATA": "Requires-Dist: nvidia-nvshmem-cu13==3.4.5\n"}
    ),
    lambda tree: tree.put(**{f"{VENV}/torch-2.13.0.dist-info/METADATA": "Name: torch\n"}),
)
case(
    "EPD516",
    SLES_15,
    intent(num_ranks=16, num_experts=256, num_qps_per_rank=8),
    intent(num_ranks=16, num_experts=256, num_qps_per_rank=16),
)

# nic

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

# gpu

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

# system

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

# fleet: one host of three

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
fleet_case("EPD902", DGX_OS, nvshmem("3.6.5"), without("opt/epfleet/nvshmem"))
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
        nvshmem("3.5.21", major=12),
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
