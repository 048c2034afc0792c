# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""GPUs: whole, open to the ranks, at full width."""

from __future__ import annotations

from typing import List

from ..model import ERROR, WARNING, Evidence, Facts, Intent, rule


@rule(
    "EPD701",
    ERROR,
    "A GPU is split by MIG",
    "Parts of a GPU cannot reach their peers by NVLink or RDMA; ranks see another number of GPUs.",
    "`nvidia-smi -i {where} -mig 0`, then reset the GPU or reboot.",
)
def mig(facts: Facts, intent: Intent) -> List[Evidence]:
    """nvidia-smi says that MIG mode is enabled."""
    return [
        Evidence(gpu["pci"], "MIG enabled", "disabled")
        for gpu in facts["nvidia"]["gpus"]
        if gpu["mig_mode"] == "Enabled"
    ]


@rule(
    "EPD702",
    ERROR,
    "A GPU admits no process",
    "Every CUDA program on it fails: `all CUDA-capable devices are busy or unavailable`.",
    "`nvidia-smi -i {where} -c DEFAULT`.",
)
def prohibited(facts: Facts, intent: Intent) -> List[Evidence]:
    """Compute mode Prohibited."""
    return [
        Evidence(gpu["pci"], gpu["compute_mode"], "Default")
        for gpu in facts["nvidia"]["gpus"]
        if gpu["compute_mode"] == "Prohibited"
    ]


@rule(
    "EPD703",
    WARNING,
    "A GPU admits one process only",
    "A second rank, a monitor or a benchmark beside the engine is refused.",
    "`nvidia-smi -i {where} -c DEFAULT`.",
)
def exclusive(facts: Facts, intent: Intent) -> List[Evidence]:
    """Compute mode Exclusive_Process."""
    return [
        Evidence(gpu["pci"], gpu["compute_mode"], "Default")
        for gpu in facts["nvidia"]["gpus"]
        if (gpu["compute_mode"] or "").startswith("Exclusive")
    ]


@rule(
    "EPD704",
    WARNING,
    "A GPU runs on fewer PCIe lanes than it can",
    "NICs reach its memory at half the rate or less.",
    "Reseat the card or the riser, look at the slot and at the BIOS: {where}.",
)
def narrow(facts: Facts, intent: Intent) -> List[Evidence]:
    """Only the width is compared: an idle GPU lowers its link's speed on purpose."""
    return [
        Evidence(gpu["pci"], f"x{gpu['link_width']}", f"x{gpu['max_link_width']}")
        for gpu in facts["nvidia"]["gpus"]
        if gpu["link_width"] and gpu["max_link_width"] and gpu["link_width"] < gpu["max_link_width"]
    ]


@rule(
    "EPD705",
    WARNING,
    "The driver lets go of idle GPUs",
    "Every start of a program waits seconds for the driver, and device nodes may be missing at"
    " boot.",
    "`systemctl enable --now nvidia-persistenced`.",
)
def no_persistence(facts: Facts, intent: Intent) -> List[Evidence]:
    """Persistence mode is disabled."""
    return [
        Evidence(gpu["pci"], "persistence mode disabled", "enabled")
        for gpu in facts["nvidia"]["gpus"]
        if gpu["persistence_mode"] == "Disabled"
    ]


@rule(
    "EPD706",
    ERROR,
    "A GPU is held for virtual machines",
    "The NVIDIA driver of this host cannot use it.",
    "Take it out of vfio-pci: the options ids= of vfio-pci in /etc/modprobe.d or vfio-pci.ids="
    " on the"
    " kernel's command line; then reboot.",
)
def vfio(facts: Facts, intent: Intent) -> List[Evidence]:
    """The device is bound to vfio-pci."""
    return [
        Evidence(f"/sys/bus/pci/devices/{gpu['pci']}/driver", "vfio-pci", "nvidia")
        for gpu in facts["nvidia"]["gpus"]
        if gpu["driver"] == "vfio-pci"
    ]


@rule(
    "EPD707",
    WARNING,
    "The GPUs of this host are not connected by NVLink",
    "Ranks of one host reach each other over PCIe or their NICs: many times slower than NVLink.",
    "Nothing, where the machine has none: give each GPU a NIC and pass"
    " allow_nvlink_for_low_latency_mode=False. Otherwise look for missing bridges and at the fabric"
    " manager.",
)
def no_nvlink(facts: Facts, intent: Intent) -> List[Evidence]:
    """nvidia-smi counts no active link, and there is more than one GPU."""
    if facts["nvidia"]["gpu_count"] < 2 or facts["nvidia"]["nvlinks"] != 0:
        return []
    return [Evidence("nvidia-smi nvlink --status", "no active link", "active links")]
