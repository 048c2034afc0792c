"""Small host trees and initramfs images, made by code so that a test shows all it depends on."""

from __future__ import annotations

import gzip
from pathlib import Path

from ansible_collections.epfleet.expert_parallel.plugins.module_utils.doctor.host.root import (
    HostRoot,
)

OUR_LINE = 'options nvidia NVreg_EnableStreamMemOPs=1 NVreg_RegistryDwords="PeerMappingOverride=1;"'
OUR_FILE = "etc/modprobe.d/zz-epfleet-nvidia.conf"
KERNEL = "6.1.0-57-amd64"

# As the 580 driver prints them, shortened.
PARAMS = """ResmanDebugLevel: 4294967295
EnableStreamMemOPs: {stream}
DmaRemapPeerMmio: 1
RegistryDwords: "{dwords}"
RegistryDwordsPerDevice: ""
"""


def write(root: Path, files: dict[str, str | bytes]) -> HostRoot:
    """Write ``files`` ({path: content}) below ``root``."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return HostRoot(str(root))


def gpu(address: str = "0000:17:00.0", device_class: str = "0x030200") -> dict[str, str]:
    """Files of a GPU on the PCI bus."""
    base = f"sys/bus/pci/devices/{address}"
    return {
        f"{base}/vendor": "0x10de\n",
        f"{base}/class": device_class + "\n",
        f"{base}/device": "0x2335\n",
        f"{base}/numa_node": "1\n",
    }


def kernel(release: str = KERNEL) -> dict[str, str]:
    """Files that make ``release`` an installed kernel."""
    return {f"lib/modules/{release}/modules.order": ""}


def loaded(stream: str = "0", dwords: str = "") -> dict[str, str]:
    """Files of a loaded driver with these parameters."""
    return {
        "proc/driver/nvidia/params": PARAMS.format(stream=stream, dwords=dwords),
        "proc/driver/nvidia/version": (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build"
            "  (dvs-builder@U22)  Tue\nGCC version:  gcc version 12.2.0\n"
        ),
        "sys/module/nvidia/version": "580.159.04\n",
    }


def cpio(files: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    """An archive in the "newc" format."""
    members = [(name, 0o100644, content) for name, content in files.items()]
    members += [(name, 0o120777, target.encode()) for name, target in (links or {}).items()]
    archive = b"".join(_member(*member) for member in members)
    return archive + _member("TRAILER!!!", 0, b"")


def _member(name: str, mode: int, content: bytes) -> bytes:
    raw = name.encode() + b"\0"
    fields = [0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(raw), 0]
    header = b"070701" + b"".join(f"{field:08x}".encode() for field in fields)
    head = header + raw
    return head + b"\0" * (-len(head) % 4) + content + b"\0" * (-len(content) % 4)


def image(with_module: bool, options: str | None, name: str = OUR_FILE) -> bytes:
    """A gzip image after an uncompressed microcode archive, as Debian builds it."""
    files = {"init": b"#!/bin/sh\n", "usr/lib/modprobe.d/aliases.conf": b"alias a b\n"}
    if with_module:
        files[f"usr/lib/modules/{KERNEL}/updates/dkms/nvidia.ko"] = b"\x7fELF" + b"x" * 4096
    if options is not None:
        files[name] = options.encode()
    early = cpio({"kernel/x86/microcode/GenuineIntel.bin": b"\0\1" * 700})
    return early + b"\0" * (-len(early) % 512) + gzip.compress(cpio(files))
