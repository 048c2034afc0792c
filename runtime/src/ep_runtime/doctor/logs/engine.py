# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Messages of drivers, NCCL, torch and the engines."""

from __future__ import annotations

from ..model import ERROR, WARNING
from .message import add

add(
    __name__,
    "EPL601",
    ERROR,
    "The driver's libraries do not fit the loaded module",
    ("Driver/library version mismatch",),
    "Every CUDA program fails.",
    "Reboot; hold the driver's packages.",
    ("EPD304",),
)
add(
    __name__,
    "EPL602",
    ERROR,
    "nvidia-smi does not reach the driver",
    ("couldn't communicate with the NVIDIA driver",),
    "The module is not loaded, or there is none for this kernel.",
    "Build it for this kernel: `dkms autoinstall`.",
    ("EPD301", "EPD306", "EPD308"),
)
add(
    __name__,
    "EPL603",
    ERROR,
    "The NVSwitch fabric is not set up",
    ("system not yet initialized", "cudaErrorSystemNotReady"),
    "CUDA does not start on hosts with NVSwitches.",
    "Start nvidia-fabricmanager.",
    ("EPD310", "EPD311"),
)
add(
    __name__,
    "EPL604",
    ERROR,
    "The fabric manager does not fit the driver",
    ("don't match with driver version",),
    "It refuses to start.",
    "Install the fabric manager of the driver's exact version.",
    ("EPD311",),
)
add(
    __name__,
    "EPL605",
    ERROR,
    "The kernel refused a module",
    (
        "disagrees about version of symbol %s",
        "Key was rejected by service",
        "Required key not available",
    ),
    "The module was built against another driver or kernel, or is not signed.",
    "Rebuild it; with Secure Boot sign it.",
    ("EPD308", "EPD314", "EPD408", "EPD610"),
)
add(
    __name__,
    "EPL606",
    ERROR,
    "GPUs of this host cannot reach each other",
    ("cudaErrorPeerAccessUnsupported", "peer access is not supported between these two devices"),
    "No NVLink or PCIe peer access: consumer GPUs, or a virtual machine.",
    "Use allow_nvlink_for_low_latency_mode=False with one NIC a GPU, or other hosts.",
)
add(
    __name__,
    "EPL607",
    ERROR,
    "NCCL or gloo lost a peer",
    (
        "Connection closed by peer",
        "Connection reset by peer",
        "NCCL WARN ... Connection closed by remote peer",
        "socketProgress: Connection closed by remote peer",
    ),
    "Another rank ended first; this one only noticed.",
    "Look at the other ranks' logs.",
)
add(
    __name__,
    "EPL608",
    ERROR,
    "NCCL cannot reach other hosts by RDMA",
    ("NET/IB : No device found", "ibvwrap.cc:%d NCCL WARN Call to ibv_modify_qp failed"),
    "NCCL falls back to sockets, or ends.",
    "Look at the NIC's port, driver and addresses on this host.",
    ("EPD601", "EPD602", "EPD604"),
)
add(
    __name__,
    "EPL609",
    WARNING,
    "NCCL runs over sockets",
    ("Using network Socket",),
    "Correct, and slow: no RDMA device was found or allowed.",
    "Look for the reason with NCCL_DEBUG=INFO; NCCL_IB_HCA names devices.",
    ("EPD601", "EPD806"),
)
add(
    __name__,
    "EPL610",
    ERROR,
    "The engine found no DeepEP",
    ("No module named 'deep_ep'", "DeepEP is not installed"),
    "Expert parallelism by DeepEP is off.",
    "Install ep-runtime-deep-ep into the engine's environment.",
)
add(
    __name__,
    "EPL611",
    ERROR,
    "A buffer was created inside a CUDA graph",
    ("operation not permitted when stream is capturing",),
    "Capture fails.",
    "Create and warm up the buffer before the engine captures its graphs.",
)
add(
    __name__,
    "EPL612",
    ERROR,
    "Memory handles could not be exchanged between processes",
    ("CUDA error ... 'invalid resource handle'", "invalid resource handle"),
    "Expandable segments, a build for another architecture, or processes in different containers.",
    "Unset PYTORCH_CUDA_ALLOC_CONF=expandable_segments, build for this GPU, share the IPC"
    " namespace.",
)
add(
    __name__,
    "EPL613",
    WARNING,
    "A driver option's line holds words that are no parameters",
    ("nvidia: unknown parameter '%s' ignored",),
    "The kernel ignores them.",
    "Correct the options line.",
    ("EPD107",),
)
add(
    __name__,
    "EPL614",
    ERROR,
    "A rank was killed for memory",
    ("Out of memory: Killed process", "oom-kill:constraint="),
    "The other ranks wait for it in vain.",
    "Lower the memory of the host's processes.",
)
