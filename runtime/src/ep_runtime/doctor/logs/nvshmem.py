# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Messages of NVSHMEM and of the layers below it."""

from __future__ import annotations

from ..model import ERROR, INFO, WARNING
from .message import add

_OPTIONS = (
    "Set the driver options and reboot (role nvidia_driver, epfleet_ibgda_mode: gpu), or choose"
    " epfleet_ibgda_mode: cpu. `ep-doctor ibgda` says which of them is missing."
)
_DRIFT = ("EPD101", "EPD102", "EPD103", "EPD104", "EPD201")

add(
    __name__,
    "EPL101",
    INFO,
    "IBGDA runs with the GPU ringing the doorbell",
    ("NIC handler will be GPU",),
    "This is the fastest mode.",
    "Nothing to do.",
)
add(
    __name__,
    "EPL102",
    WARNING,
    "IBGDA runs with a CPU thread ringing the doorbell, by GDRCopy",
    (
        "NIC handler will be CPU with gdrcopy backend",
        "NIC handler will be CPU with the selected GPU CPU mapping backend",
    ),
    "Correct, with more latency than the GPU's own doorbell.",
    _OPTIONS,
    _DRIFT,
)
add(
    __name__,
    "EPL103",
    WARNING,
    "IBGDA runs with a CPU thread and queues in host memory",
    ("NIC handler will be CPU with host memory backend",),
    "Correct, and the slowest mode; NVSHMEM falls back to it without an error.",
    _OPTIONS,
    (*_DRIFT, "EPD402"),
)
add(
    __name__,
    "EPL104",
    ERROR,
    "The GPU may not map the NIC's doorbell",
    (
        "cudaHostRegister with IoMemory failed with error=%d",
        "GPU cannot map UAR of device %s",
        "ibgda_alloc_and_map_qp_uar with GPU as handler failed",
    ),
    "IBGDA falls back to a CPU thread, or does not start.",
    _OPTIONS,
    _DRIFT,
)
add(
    __name__,
    "EPL105",
    ERROR,
    "NVSHMEM has no IBGDA transport",
    ("init failed for transport: IBGDA",),
    "GPUs of other hosts are out of reach; peers by NVLink still work.",
    "Look at the lines before it. Mostly: driver options, nvidia_peermem, permissions of the"
    " container.",
    (*_DRIFT, "EPD609", "EPD806"),
)
add(
    __name__,
    "EPL106",
    ERROR,
    "NVSHMEM has no transport at all",
    ("Unable to initialize any transports. returning error.", "nvshmem detect topo failed"),
    "The program ends at its start.",
    "Look at the lines before it: no RDMA device, no permission, or a plugin that cannot be"
    " loaded.",
    ("EPD601", "EPD506", "EPD504", "EPD806"),
)
add(
    __name__,
    "EPL107",
    ERROR,
    "NICs have no way into GPU memory",
    ("neither nv_peer_mem, or nvidia_peermem detected. Skipping transport.",),
    "RDMA transports are skipped.",
    "`modprobe nvidia-peermem`, or a kernel and driver with DMA-BUF.",
    ("EPD609", "EPD610"),
)
add(
    __name__,
    "EPL108",
    ERROR,
    "GDRCopy cannot be opened",
    (
        "GDRCopy open call failed, disabling GDRCopy",
        "error opening driver (errno=%d",
        "NVSHMEM_IBGDA_NIC_HANDLER=cpu requires GDRCopy.",
    ),
    "CPU-assisted IBGDA does not start before NVSHMEM 3.4.5, and is slower after.",
    "Load gdrdrv and make its node (role gdrcopy).",
    ("EPD401", "EPD402", "EPD403"),
)
add(
    __name__,
    "EPL109",
    ERROR,
    "gdrdrv and libgdrapi do not fit each other",
    (
        "The minimum required gdrdrv driver version is %d.%d but the current gdrdrv version is",
        "GDRCopy library version is not compatible",
    ),
    "GDRCopy is disabled.",
    "Install both of one version and load the module anew.",
    ("EPD406",),
)
add(
    __name__,
    "EPL110",
    ERROR,
    "NVSHMEM's device and host libraries are of different versions",
    (
        # 3.8.0 says the two versions too.
        "NVSHMEM device library version ... does not match with NVSHMEM host library version",
        "NVSHMEM version in CUmodule or CUlibrary ... does not match with NVSHMEM host library",
    ),
    "The program ends, or hangs in its first call.",
    "Let the process find one NVSHMEM only: the one it was built with.",
    ("EPD505", "EPD902"),
)
add(
    __name__,
    "EPL111",
    ERROR,
    "No RDMA device serves IBGDA",
    ("no active IB device that supports GPU-initiated communication is found",),
    "GPUs of other hosts are out of reach.",
    "Look for devices that are down, of another maker, or under names that this NVSHMEM does not"
    " know.",
    ("EPD512", "EPD601", "EPD602"),
)
add(
    __name__,
    "EPL112",
    WARNING,
    "An RDMA device is skipped because it is not an mlx5 device",
    ("device %s is not enumerated as an mlx5 device",),
    "IBGDA works with NVIDIA NICs alone.",
    "Fine for management devices; else use mlx5 NICs.",
    ("EPD601",),
)
add(
    __name__,
    "EPL113",
    ERROR,
    "libmlx5 cannot be loaded",
    ("Unable to dlopen libmlx5dv",),
    "There is no IBGDA.",
    "Install rdma-core's libmlx5 (ibverbs-providers, libibverbs, libmlx5-1).",
    ("EPD506",),
)
add(
    __name__,
    "EPL114",
    ERROR,
    "An address handle cannot be made",
    ("Unable to create ah",),
    "RoCE queue pairs are not created with NVSHMEM 3.3.20 to 3.4.5.",
    "Use NVSHMEM 3.5.21 or newer.",
    ("EPD508",),
)
add(
    __name__,
    "EPL115",
    ERROR,
    "A queue pair cannot be connected",
    (
        "ibv_modify_qp failed",
        "ibv_modify_qp ... failed with %d",
        "ibgda_rc_init2rtr failed on RC #%d",
        "Error in mlx5dv_devx_obj_modify for INIT2RTR_QP with syndrome %x",
    ),
    "The hosts do not reach each other by RDMA: a wrong address row, NICs of different networks,"
    " or a"
    " route that is missing.",
    "Leave NVSHMEM_IB_GID_INDEX unset or set it for each host; check with `ib_write_bw` between"
    " the two"
    " NICs named before this line.",
    ("EPD604", "EPD605", "EPD909", "EPD513"),
)
add(
    __name__,
    "EPL116",
    ERROR,
    "The process may not allocate a doorbell page",
    ("cannot allocate mlx5dv_devx_uar",),
    "IBGDA is not possible in this container.",
    "Give the container /dev/infiniband, CAP_IPC_LOCK and an unlimited memlock, or run it"
    " privileged.",
    ("EPD806", "EPD807", "EPD801"),
)
add(
    __name__,
    "EPL117",
    ERROR,
    "A NIC cannot use the memory chosen for its queues",
    ("device %s cannot allocate buffer on the specified memory type",),
    "IBGDA skips the device.",
    "Driver options, nvidia_peermem or GDRCopy are missing;"
    " NVSHMEM_IBGDA_FORCE_NIC_BUF_MEMTYPE=hostmem"
    " is a way around.",
    (*_DRIFT, "EPD609"),
)
add(
    __name__,
    "EPL118",
    ERROR,
    "A NIC lacks PCIe atomics",
    ("device %s does not support all necessary atomic operations",),
    "NVSHMEM skips the device.",
    "`mlxconfig -d DEVICE set PCI_ATOMIC_MODE=4 ADVANCED_PCI_SETTINGS=1`, then reset the firmware.",
)
add(
    __name__,
    "EPL119",
    ERROR,
    "Memory cannot be registered with the NIC",
    ("ibv_reg_mr ... Cannot allocate memory", "mem registration failed"),
    "The symmetric heap is not reachable.",
    "Raise the memlock limit to unlimited.",
    ("EPD801", "EPD802"),
)
add(
    __name__,
    "EPL120",
    ERROR,
    "NVSHMEM_QP_DEPTH is out of range",
    (
        "NVSHMEM_QP_DEPTH must be at least 128",
        "NVSHMEM_QP_DEPTH can be at most 32768",
        "can be at most 32768.",
    ),
    "NVSHMEM does not start.",
    "Choose 2 * (tokens + 1) or more, at most 32768.",
    ("EPD509",),
)
add(
    __name__,
    "EPL121",
    ERROR,
    "Queue pairs cannot be created",
    ("qp creation failed", "create DCT share err"),
    "Too many queue pairs, or too deep ones, for this NIC.",
    "Lower NVSHMEM_QP_DEPTH or num_qps_per_rank.",
    ("EPD510",),
)
add(
    __name__,
    "EPL122",
    ERROR,
    "GPU memory for the symmetric heap cannot be had",
    ("cuMemCreate failed",),
    "The buffer does not fit beside what the engine holds already.",
    "Lower the engine's share of GPU memory or the number of tokens per rank.",
)
add(
    __name__,
    "EPL123",
    WARNING,
    "Several NVSHMEM processes share a GPU",
    ("More than 1 PE per GPU detected. This is an MPG run",),
    "Without CUDA MPS they take turns of milliseconds.",
    "Start nvidia-cuda-mps-control, or give each rank a GPU of its own.",
    ("EPD703",),
)
add(
    __name__,
    "EPL124",
    ERROR,
    "A transport plugin of NVSHMEM is missing",
    ("Unable to open the %s transport. nvshmem_transport_",),
    "NVSHMEM 3.8 does not start without the plugin that it is told to use; earlier ones go on"
    " without IBGDA.",
    "Install all of NVSHMEM again: its plugins belong beside its library.",
    ("EPD504",),
)
add(
    __name__,
    "EPL125",
    ERROR,
    "The RDMA libraries are missing",
    (
        "Unable to open the %s transport. libmlx5.so",
        "Unable to open the %s transport. libibverbs.so",
        "Unable to dlopen libibverbs",
    ),
    "No RDMA transport starts.",
    "Install rdma-core (libibverbs1, ibverbs-providers), in the container too.",
    ("EPD506",),
)
add(
    __name__,
    "EPL126",
    ERROR,
    "The ranks did not meet",
    (
        "socketStartConnect: Connect to %s failed",
        "Bootstrap plugin init failed for",
        "bootstrap_init failed",
    ),
    "NVSHMEM does not start.",
    "Name an interface that all hosts share in NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME.",
)
