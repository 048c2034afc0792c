# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Messages of DeepEP's Python side and of its second version."""

from __future__ import annotations

from ..model import ERROR, WARNING
from .message import add

add(
    __name__,
    "EPL201",
    ERROR,
    "The host waited too long for tokens",
    ("DeepEP error: timeout (dispatch CPU)", "DeepEP error: CPU recv timeout"),
    "A rank did not come: it died, is still compiling, or its messages are lost.",
    "Look at the other ranks' logs for an earlier error. With NVSHMEM 3.5.19 or newer use a"
    " DeepEP that"
    " knows its queue layout; long warm-ups need a longer timeout.",
)
add(
    __name__,
    "EPL202",
    ERROR,
    "There are fewer queue pairs than the kernels need",
    (
        "num_rc_per_pe >= num_channels",
        "num_rc_per_pe >= num_local_experts",
        "num_rc_per_pe == num_channels or",
    ),
    "The kernel stops; CUDA reports an unspecified launch failure.",
    "Set num_qps_per_rank to the number of local experts (low latency), or of SMs (normal mode).",
    ("EPD516",),
)
add(
    __name__,
    "EPL203",
    ERROR,
    "NCCL's GPU-initiated network is not available",
    ("NCCL GIN is unavailable", "GIN: DevComm setup failed on all available backends"),
    "DeepEP V2 has no way to other hosts.",
    "Update rdma-core or DOCA-OFED (libmlx5 with MLX5_1.25), load gdrdrv, try"
    " NCCL_IB_MERGE_NICS=0.",
    ("EPD401",),
)
add(
    __name__,
    "EPL204",
    ERROR,
    "The network proxy takes no queue depth",
    ("GIN_IB_PROXY does not support specifying qp depth",),
    "DeepEP V2 does not start.",
    "Leave the queue depth unset.",
)
add(
    __name__,
    "EPL205",
    ERROR,
    "Two NCCLs are in one process",
    ("Duplicate NCCL runtime found in the current system", "Invalid NCCL versions: "),
    "DeepEP V2 refuses to start.",
    "Keep one NCCL: the version that torch asks for, or newer, in the same environment.",
)
add(
    __name__,
    "EPL206",
    ERROR,
    "DeepEP was built without NVSHMEM",
    (
        "NVSHMEM is disabled during compilation",
        "All internode and low-latency features are disabled",
    ),
    "Only normal mode within a host works.",
    "Build it with NVSHMEM_DIR set, or install ep-runtime and its deep_ep.",
)
add(
    __name__,
    "EPL207",
    WARNING,
    "A buffer was not destroyed",
    ("`destroy()` is not called before DeepEP",),
    "Resources leak; the next start in the same process may hang.",
    "Call destroy() on all ranks before the process group goes.",
)
add(
    __name__,
    "EPL208",
    ERROR,
    "Kernels could not be compiled at run time",
    ("NVCC compilation failed", "Corrupted JIT cache directory"),
    "DeepEP V2 compiles its kernels on each host.",
    "Install nvcc 12.3 or newer at CUDA_HOME; remove the cache directory that the line names.",
)
