"""Whole small hosts: a few GPUs, each with a NIC below its PCI switch, and all that is healthy.

A ``Tree`` starts healthy. Its methods change one thing each, in the words of the thing changed, so
that a fixture of a rule reads as the fault it holds.
"""

from __future__ import annotations

import gzip
import lzma
import shutil
import struct
import subprocess
from pathlib import Path

import elf
from layouts import Layout
from trees import OUR_LINE, PARAMS, cpio

DRIVER = "580.159.04"
OUR_FILE = "etc/modprobe.d/zz-epfleet-nvidia.conf"
VENV = "opt/epfleet/venv/lib/python3.11/site-packages"
NVSHMEM = "opt/epfleet/nvshmem/wanted/nvidia/nvshmem"
SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
RECORDED = "run/epfleet/recorded/"
_ABI = {"3.2.5": 3, "3.3.9": 3, "3.4.5": 3, "3.5.21": 4, "3.6.5": 5, "3.7.2": 6, "3.8.0": 7}
_NODE = {"nvidiactl": 195, "nvidia-uvm": 506, "gdrdrv": 508}


def compressed(content: bytes, suffix: str) -> bytes:
    """As the distribution packs its modules."""
    if suffix == ".xz":
        return lzma.compress(content, check=lzma.CHECK_CRC32)
    if suffix == ".gz":
        return gzip.compress(content)
    if suffix == ".zst":
        program = shutil.which("zstd")
        assert program, "zstd (Debian package zstd) is missing"
        run = subprocess.run([program, "-qc"], input=content, capture_output=True, check=True)
        return run.stdout
    return content


class Tree:
    """A host of ``layout`` as files and links, by path without leading slash."""

    def __init__(self, layout: Layout, devices: int = 2) -> None:
        self.layout = layout
        self.devices = devices
        self.files: dict[str, str | bytes] = {}
        self.links: dict[str, str] = {}
        self.intent: dict = {}
        self.gpus = [f"0000:{0x18 + 0x20 * i:02x}:00.0" for i in range(self.devices)]
        self.nics = [f"0000:{0x19 + 0x20 * i:02x}:00.0" for i in range(self.devices)]
        # The one that torch asks for; older ones are not for RoCE.
        self.nvshmem_version = "3.5.21" if layout.link_layer == "Ethernet" else "3.4.5"
        self.images = {layout.kernel: OUR_LINE, layout.older_kernel: OUR_LINE}
        self.parameters = {"stream": "1", "dwords": "PeerMappingOverride=1;"}
        self._system()
        self._kernels()
        self._driver()
        self._bus()
        self._rdma()
        self._libraries()
        self._software()
        self._records()

    def write(self, root: Path) -> Path:
        """Write everything below ``root`` and return it."""
        for kernel, options in self.images.items():
            if options is not None:
                self.files[self.layout.image.format(kernel)] = self._image(kernel, options)
        if "proc/driver/nvidia/version" in self.files:
            self.files["proc/driver/nvidia/params"] = PARAMS.format(**self.parameters)
        made: set[Path] = set()
        for name, content in self.files.items():
            path = root / name
            if path.parent not in made:
                path.parent.mkdir(parents=True, exist_ok=True)
                made.add(path.parent)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        for name, target in self.links.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(target)
        return root

    def remove(self, prefix: str) -> Tree:
        """Without every file and link whose path begins so."""
        for names in (self.files, self.links):
            for name in [name for name in names if name.startswith(prefix)]:
                del names[name]
        return self

    def put(self, **contents: str | bytes) -> Tree:
        """For short calls: ``put(**{path: content})``."""
        self.files.update(contents)
        return self

    def line(self, path: str, value: str) -> Tree:
        """A file of one line."""
        self.files[path] = value + "\n"
        return self

    # What the host is built from.

    def _system(self) -> None:
        self.files["etc/os-release"] = self.layout.os_release
        self.line("proc/sys/kernel/osrelease", self.layout.kernel)
        self.line("proc/sys/kernel/random/boot_id", "8d6ad1f5-4aa4-4d22-9d1c-0c5e3b9b8f10")
        self.line("proc/sys/kernel/numa_balancing", "0")
        self.cmdline("")
        self.files["proc/stat"] = "cpu 1 2 3\nbtime 1790000000\n"
        self.files["proc/self/status"] = "Name:\tpython3\nCapEff:\t000001ffffffffff\n"
        self.memlock("unlimited", "unlimited", "infinity")
        self.files[SECURE_BOOT] = b"\6\0\0\0\0"
        self.files[self.layout.generator] = "#!/bin/sh\n"
        for index in range(2):
            self.files[f"dev/infiniband/uverbs{index}"] = f"c 231 {192 + index}\n"

    def _kernels(self) -> None:
        for kernel in (self.layout.kernel, self.layout.older_kernel):
            self.files[f"boot/vmlinuz-{kernel}"] = "kernel\n"
            self.files[f"boot/config-{kernel}"] = (
                "CONFIG_DMA_SHARED_BUFFER=y\n# CONFIG_MODULE_SIG_FORCE is not set\n"
            )
            self.files[f"lib/modules/{kernel}/modules.order"] = ""
            self.modules(kernel)
        if self.layout.packages == "dpkg":
            self.files["etc/default/grub"] = 'GRUB_DEFAULT=0\nGRUB_CMDLINE_LINUX=""\n'
        elif self.layout.name == "rhel9":
            entry = f"ffffffffffffffffffffffffffffffff-{self.layout.kernel}"
            self.files["etc/default/grub"] = "GRUB_DEFAULT=saved\n"
            self.files["boot/grub2/grubenv"] = f"# GRUB Environment\nsaved_entry={entry}\n###"
            self.files[f"boot/loader/entries/{entry}.conf"] = (
                f"title RHEL\nversion {self.layout.kernel}\nlinux /vmlinuz-{self.layout.kernel}\n"
            )
        else:
            self.files["etc/default/grub"] = "GRUB_DEFAULT=saved\n"
            self.links["boot/vmlinuz"] = f"vmlinuz-{self.layout.kernel}"

    def modules(self, kernel: str, version: str = DRIVER, signed: bool = False) -> Tree:
        """The driver's and GDRCopy's modules of ``kernel``."""
        license_ = "Dual MIT/GPL" if self.layout.flavour == "open" else "NVIDIA"
        magic = f"{kernel} SMP preempt mod_unload modversions "
        self.module(
            kernel, "nvidia", version=version, license=license_, vermagic=magic, signed=signed
        )
        self.module(
            kernel,
            "nvidia-peermem",
            version=version,
            license="Linux-OpenIB",
            depends="nvidia,ib_core",
            vermagic=magic,
            signed=signed,
        )
        self.module(
            kernel,
            "gdrdrv",
            version="2.5.1",
            license="Dual MIT/GPL",
            depends="nvidia",
            vermagic=magic,
            signed=signed,
        )
        return self

    def module(self, kernel: str, name: str, signed: bool = False, **fields: str) -> Tree:
        """One module file, named in the kernel's index."""
        suffix = ".ko" + self.layout.compression
        path = f"{self.layout.modules}/{name}{suffix}"
        base = f"lib/modules/{kernel}"
        self.files[f"{base}/{path}"] = compressed(
            elf.module(signed, **fields), self.layout.compression
        )
        index = str(self.files.get(f"{base}/modules.dep", ""))
        if path + ":" not in index:
            self.files[f"{base}/modules.dep"] = index + f"{path}:\n"
        if self.layout.dkms and name in ("nvidia", "gdrdrv"):
            build = f"var/lib/dkms/{name}/{fields.get('version', DRIVER)}"
            self.links.setdefault(f"{build}/source", f"/usr/src/{name}")
            self.files[f"{build}/{kernel}/x86_64/module/{name}.ko"] = "module\n"
        return self

    def without_module(self, kernel: str, name: str) -> Tree:
        """``kernel`` lost one module file, in the index and under DKMS too."""
        base = f"lib/modules/{kernel}"
        self.remove(f"{base}/{self.layout.modules}/{name}.ko")
        lines = str(self.files[f"{base}/modules.dep"]).splitlines(keepends=True)
        self.files[f"{base}/modules.dep"] = "".join(
            line for line in lines if f"/{name}.ko" not in line
        )
        for path in [path for path in self.files if path.endswith(f"/module/{name}.ko")]:
            if f"/{kernel}/" in path:
                del self.files[path]
        return self

    def _image(self, kernel: str, options: str) -> bytes:
        files = {
            "init": b"#!/bin/sh\n",
            f"usr/lib/modules/{kernel}/updates/nvidia.ko": b"\x7fELF" + b"x" * 2048,
            OUR_FILE: options.encode() + b"\n",
        }
        early = cpio({"kernel/x86/microcode/GenuineIntel.bin": b"\0\1" * 700})
        return early + b"\0" * (-len(early) % 512) + gzip.compress(cpio(files), mtime=0)

    def _driver(self) -> None:
        self.files[OUR_FILE] = OUR_LINE + "\n"
        self.files["usr/lib/modprobe.d/nvidia-vendor.conf"] = "blacklist nouveau\n"
        self.version(DRIVER)
        self.files["proc/devices"] = (
            "Character devices:\n195 nvidia\n506 nvidia-uvm\n508 gdrdrv\n\nBlock devices:\n"
        )
        for node, major in _NODE.items():
            self.node(node, major)
        for name, version in (("nvidia_peermem", DRIVER), ("gdrdrv", "2.5.1")):
            self.line(f"sys/module/{name}/version", version)
        self.files["sys/module/mlx5_core/uevent"] = ""
        self.files["proc/modules"] = "".join(
            f"{name} 16384 0 - Live 0x0\n"
            for name in ("nvidia_uvm", "nvidia", "nvidia_peermem", "gdrdrv", "mlx5_core", "mlx5_ib")
        )

    def version(self, version: str, flavour: str = "") -> Tree:
        """The loaded driver's version and flavour."""
        words = {"open": "Open Kernel Module for x86_64 ", "proprietary": "x86_64 Kernel Module "}
        kind = words[flavour or self.layout.flavour]
        self.files["proc/driver/nvidia/version"] = (
            f"NVRM version: NVIDIA UNIX {kind} {version}  Release Build\nGCC version: 12\n"
        )
        self.line("sys/module/nvidia/version", version)
        return self

    def node(self, name: str, major: int) -> Tree:
        """A device node."""
        return self.line(f"dev/{name}", f"c {major} 0")

    def _device(self, address: str, place: str, **lines: str) -> None:
        base = f"sys/devices/{place}"
        self.links[f"sys/bus/pci/devices/{address}"] = f"../../../devices/{place}"
        for name, value in lines.items():
            self.line(f"{base}/{name}", value)

    def bridge(self, place: str) -> None:
        """A PCI bridge at ``place``, without redirection."""
        address = place.rsplit("/", 1)[-1]
        self._device(address, place, vendor="0x1000", **{"class": "0x060400"})
        self.space(address)

    def _bus(self) -> None:
        for i in range(self.devices):
            low = 0x15 + 0x20 * i
            root, switch = f"pci0000:{low:02x}", f"0000:{low:02x}:01.0/0000:{low + 1:02x}:00.0"
            for place in (switch.partition("/")[0], switch):
                self.bridge(f"{root}/{place}")
            for port in ("00", "01"):
                self.bridge(f"{root}/{switch}/0000:{low + 2:02x}:{port}.0")
            link = {
                "numa_node": str(i),
                "current_link_width": "16",
                "max_link_width": "16",
                "current_link_speed": "32.0 GT/s PCIe",
                "max_link_speed": "32.0 GT/s PCIe",
            }
            gpu = self.gpus[i]
            self._device(
                gpu,
                f"{root}/{switch}/0000:{low + 2:02x}:00.0/{gpu}",
                vendor="0x10de",
                device="0x2335",
                **{"class": "0x030200"},
                **link,
            )
            self.links[f"sys/devices/{self.place(gpu)}/driver"] = "/sys/bus/pci/drivers/nvidia"
            self.space(gpu)
            nic = self.nics[i]
            self._device(
                nic,
                f"{root}/{switch}/0000:{low + 2:02x}:01.0/{nic}",
                vendor="0x15b3",
                device="0x1021",
                **{"class": "0x020000"},
                **link,
            )
            self.links[f"sys/devices/{self.place(nic)}/driver"] = "/sys/bus/pci/drivers/mlx5_core"
            self.space(nic)
            self.files[f"proc/driver/nvidia/gpus/{gpu}/information"] = (
                f"Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-{i}\nBus Location: \t {gpu}\n"
            )
        for i in range(self.layout.nvswitches):
            address = f"0000:{0x60 + i:02x}:00.0"
            place = f"pci0000:5f/0000:5f:0{i}.0/{address}"
            self._device(address, place, vendor="0x10de", device="0x22a3", **{"class": "0x068000"})
        if self.layout.nvswitches:
            self.fabric_manager(DRIVER, "4711")

    def place(self, address: str) -> str:
        """Where a PCI device lies below sys/devices."""
        return self.links[f"sys/bus/pci/devices/{address}"].replace("../../../devices/", "")

    def space(self, address: str, acs: int = 0, relaxed: bool = True, size: int = 4096) -> Tree:
        """A configuration space: PCI Express at 0x40, Access Control Services at 0x100."""
        data = bytearray(4096)
        data[0x34] = 0x40
        data[0x40] = 0x10
        struct.pack_into("<H", data, 0x48, 0x2810 | (0x10 if relaxed else 0) if relaxed else 0x2800)
        struct.pack_into("<IHH", data, 0x100, 0x0001000D, 0x5F, acs)
        self.files[f"sys/devices/{self.place(address)}/config"] = bytes(data[:size])
        return self

    def fabric_manager(self, version: str | None, process: str) -> Tree:
        """The fabric manager's package and process ("" when it does not run)."""
        if self.layout.packages == "dpkg":
            status = "Package: bash\nStatus: install ok installed\nVersion: 5.1\n\n"
            if version:
                status += (
                    "Package: nvidia-fabricmanager-580\nStatus: install ok installed\n"
                    f"Section: utils\nVersion: {version}-0ubuntu1\n\n"
                )
            self.files["var/lib/dpkg/status"] = status
        else:
            text = f"nvidia-fabric-manager {version}\n" if version else "package is not installed\n"
            self.files[RECORDED + "rpm"] = text
        unit = "nvidia-fabricmanager.service"
        self.files[f"sys/fs/cgroup/system.slice/{unit}/cgroup.procs"] = process
        if version:
            self.links[f"etc/systemd/system/multi-user.target.wants/{unit}"] = (
                f"/lib/systemd/{unit}"
            )
        return self

    def nic_name(self, i: int) -> str:
        return f"{self.layout.nic_prefix}{i}"

    def nic_directory(self, i: int) -> str:
        return f"sys/devices/{self.place(self.nics[i])}/infiniband/{self.nic_name(i)}"

    def _rdma(self) -> None:
        for i in range(self.devices):
            place, name = self.place(self.nics[i]), self.nic_name(i)
            base = self.nic_directory(i)
            self.links[f"sys/class/infiniband/{name}"] = f"../../devices/{place}/infiniband/{name}"
            self.links[f"{base}/device"] = "../.."
            self.line(f"{base}/fw_ver", "28.43.2026")
            self.line(f"{base}/board_id", "MT_0000000838")
            self.port(i)
            self.line(f"sys/devices/{place}/net/ens{i}np0/mtu", "9000")
            self.links[f"sys/class/net/ens{i}np0"] = f"../../devices/{place}/net/ens{i}np0"
        self.gids()

    def port(self, i: int, state: str = "4: ACTIVE", rate: str = "400 Gb/sec (4X NDR)") -> Tree:
        """State and rate of a NIC's port."""
        port = self.nic_directory(i) + "/ports/1"
        self.line(f"{port}/state", state)
        self.line(f"{port}/phys_state", "5: LinkUp" if "ACTIVE" in state else "3: Disabled")
        self.line(f"{port}/rate", rate)
        self.line(f"{port}/link_layer", self.layout.link_layer)
        return self

    def gids(
        self, kinds: tuple[str, ...] = ("IB/RoCE v1", "RoCE v2", "IB/RoCE v1", "RoCE v2")
    ) -> Tree:
        """Address tables: two link-local entries, then IPv4 ones, and empty rows."""
        for i in range(self.devices):
            port = self.nic_directory(i) + "/ports/1"
            self.remove(f"{port}/gid")
            if self.layout.link_layer == "InfiniBand":
                self.line(f"{port}/gids/0", f"fe80:0000:0000:0000:a088:c203:0012:34{i:02x}")
                self.line(f"{port}/gid_attrs/types/0", "IB/RoCE v1")
                continue
            for index in range(6):
                gid = "0000:0000:0000:0000:0000:0000:0000:0000"
                if index < len(kinds):
                    gid = f"0000:0000:0000:0000:0000:ffff:0a00:{i:02x}01"
                    if index < 2:
                        gid = f"fe80:0000:0000:0000:a288:c2ff:fe12:34{i:02x}"
                    self.line(f"{port}/gid_attrs/types/{index}", kinds[index])
                    self.line(f"{port}/gid_attrs/ndevs/{index}", f"ens{i}np0")
                self.line(f"{port}/gids/{index}", gid)
        return self

    def _libraries(self) -> None:
        self.library("libmlx5.so.1", "libmlx5.so.1.25.50.0")
        self.library("libibverbs.so.1", "libibverbs.so.1.14.50.0")
        self.library("libcuda.so.1", f"libcuda.so.{DRIVER}")
        self.library("libgdrapi.so.2", "libgdrapi.so.2.5.1")
        self.files["etc/ld.so.conf"] = "include ld.so.conf.d/*.conf\n"
        self.files["etc/ld.so.conf.d/cuda.conf"] = "# CUDA\n/usr/local/cuda/lib64\n"

    def library(self, soname: str, file: str) -> Tree:
        """A library and the name that leads to it."""
        directory = self.layout.library_directory
        self.files[f"{directory}/{file}"] = b"\x7fELF"
        self.links[f"{directory}/{soname}"] = file
        return self

    def nvshmem(
        self,
        path: str,
        version: str = "3.4.5",
        plugin: int | None = None,
        ibgda: bool = True,
        major: int = 13,
    ) -> Tree:
        """A copy of NVSHMEM as its wheel lays it out."""
        site = path[: -len("/nvidia/nvshmem")]
        numbers = version.split(".")
        abi = _ABI[version]
        self.files[f"{path}/include/non_abi/nvshmem_version.h"] = "".join(
            f"#define NVSHMEM_VENDOR_{part}_VERSION {number}\n"
            for part, number in zip(("MAJOR", "MINOR", "PATCH"), numbers)
        ) + (
            f"#define NVSHMEM_TRANSPORT_PLUGIN_MAJOR_VERSION {abi}\n"
            f'#define NVSHMEM_BUILD_VARS "NVSHMEM_IBGDA_SUPPORT={"ON" if ibgda else "OFF"} X=1"\n'
        )
        self.files[f"{path}/lib/libnvshmem_host.so.3"] = b"\x7fELF"
        for name in ("ibgda", "ibrc"):
            self.files[f"{path}/lib/nvshmem_transport_{name}.so.{plugin or abi}"] = b"\x7fELF"
        self.files[f"{site}/nvidia_nvshmem_cu{major}-{version}.dist-info/METADATA"] = ""
        return self

    def _software(self) -> None:
        self.files[f"{VENV}/torch/version.py"] = (
            "__version__ = '2.13.0+cu130'\ncuda: str = '13.0'\n"
        )
        self.files[f"{VENV}/torch-2.13.0.dist-info/METADATA"] = (
            f"Name: torch\nRequires-Dist: nvidia-nvshmem-cu13=={self.nvshmem_version}; "
            'platform_system == "Linux"\n'
        )
        self.files[f"{VENV}/ep_runtime-0.1.0.dist-info/METADATA"] = "Name: ep-runtime\n"
        self.nvshmem(NVSHMEM, self.nvshmem_version)
        self.nvshmem(f"{VENV}/nvidia/nvshmem", self.nvshmem_version)
        self.files["usr/local/cuda/include/cuda.h"] = "#define CUDA_VERSION 13000\n"
        self.files["usr/local/cuda/bin/nvcc"] = ""

    def nvlink(self, state: str) -> Tree:
        """The same state of two NVLinks of each GPU."""
        self.files[RECORDED + "nvidia-smi-nvlink"] = "".join(
            f"GPU {i}: NVIDIA H200 (UUID: GPU-{i})\n\t Link 0: {state}\n\t Link 1: {state}\n"
            for i in range(self.devices)
        )
        return self

    def _records(self) -> None:
        self.smi()
        self.nvlink("26.562 GB/s")
        self.log()
        self.files[RECORDED + "df"] = (
            "Filesystem 1024-blocks Used Available Capacity Mounted on\n"
            "/dev/sda2 996780 300000 627968 33% /boot\n"
        )
        for i in range(self.devices) if self.layout.link_layer == "Ethernet" else ():
            self.flow_control(i)
        if self.layout.packages == "rpm":
            self.files[RECORDED + "rpm"] = "package nvidia-fabricmanager is not installed\n"

    def flow_control(
        self, i: int, lossless: int | None = 3, table: str = "26:3 48:6", given: str = "106"
    ) -> Tree:
        """What dcb says of a RoCE device, and the traffic class that its driver gives."""
        pairs = " ".join(f"{prio}:{'on' if prio == lossless else 'off'}" for prio in range(8))
        self.files[f"{RECORDED}dcb-pfc-ens{i}np0"] = (
            f"pfc-cap 8 macsec-bypass off delay 0\nprio-pfc {pairs} \n"
        )
        self.files[f"{RECORDED}dcb-dscp-ens{i}np0"] = f"dscp-prio {table} \n" if table else ""
        self.line(f"{self.nic_directory(i)}/tc/1/traffic_class", f"Global tclass={given}")
        return self

    def smi(
        self, mig: str = "Disabled", mode: str = "Default", persistence: str = "Enabled"
    ) -> Tree:
        """What nvidia-smi says of each GPU."""
        self.files[RECORDED + "nvidia-smi"] = "".join(
            f"0000{gpu.upper()}, 9.0, {mig}, {mode}, {persistence}\n" for gpu in self.gpus
        )
        return self

    def log(self, *lines: str) -> Tree:
        """Lines of the kernel's log after a usual one."""
        usual = "[    1.2] nvidia: loading out-of-tree module taints kernel."
        self.files[RECORDED + "dmesg"] = "\n".join((usual, *lines)) + "\n"
        return self

    def cmdline(self, more: str) -> Tree:
        """The running kernel's command line."""
        text = f"BOOT_IMAGE=/boot/vmlinuz-{self.layout.kernel} root=/dev/sda2 ro iommu=pt"
        return self.line("proc/cmdline", f"{text} {more}".strip())

    def memlock(self, session: str, pam: str, systemd: str) -> Tree:
        """The limits of locked memory."""
        self.files["proc/self/limits"] = (
            "Limit                     Soft Limit           Hard Limit           Units\n"
            f"Max locked memory         {session:<20} {session:<20} bytes\n"
        )
        self.files["etc/security/limits.d/90-rdma.conf"] = f"* - memlock {pam}\n" if pam else ""
        self.files["etc/systemd/system.conf"] = (
            f"[Manager]\nDefaultLimitMEMLOCK={systemd}\n" if systemd else "[Manager]\n"
        )
        return self

    def environment(self, **variables: str) -> Tree:
        """Variables that every login gets."""
        self.files["etc/environment"] = 'PATH="/usr/bin:/bin"\n' + "".join(
            f"{name}={value}\n" for name, value in variables.items()
        )
        return self
