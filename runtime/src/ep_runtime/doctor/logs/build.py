# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Messages of compilers, linkers and the loader."""

from __future__ import annotations

from ..model import ERROR
from .message import add

add(
    __name__,
    "EPL501",
    ERROR,
    "CUDA 13's headers are not where the build looks",
    ("fatal error: cuda/std/tuple",),
    "The extension is not built.",
    "Add $CUDA_HOME/include/cccl to CPATH, and use NVSHMEM for CUDA 13.",
    ("EPD503",),
)
add(
    __name__,
    "EPL502",
    ERROR,
    "NVSHMEM was built without IBGDA",
    ("Undefined reference to 'nvshmemi_ibgda_device_state_d'",),
    "The kernels do not link.",
    "Use NVIDIA's wheels or packages of NVSHMEM.",
    ("EPD507",),
)
add(
    __name__,
    "EPL503",
    ERROR,
    "The linker looks for an unversioned NVSHMEM",
    ("cannot find -l:libnvshmem_host.so",),
    "Wheels of NVSHMEM hold libnvshmem_host.so.3 alone.",
    "Link libnvshmem_host.so.3 by its full name, or make the link yourself.",
)
add(
    __name__,
    "EPL504",
    ERROR,
    "Device code was not linked",
    ("undefined symbol: __cudaRegisterLinkedBinary_",),
    "The extension cannot be imported.",
    "Build with -rdc=true and a device link step.",
)
add(
    __name__,
    "EPL505",
    ERROR,
    "The extension was built for another torch",
    (
        "undefined symbol: _Z14THPStream_WrapRKN3c106StreamE",
        "undefined symbol: _ZN3c10",
        "undefined symbol: _ZN5torch",
        "undefined symbol: _ZN7deep_ep",
        "undefined symbol: _ZNSt15__exception_ptr",
    ),
    "It cannot be imported.",
    "Build it anew in this environment; ep-runtime's wheel serves every torch.",
)
add(
    __name__,
    "EPL506",
    ERROR,
    "A library of another CUDA major is asked for",
    ("libcudart.so.%d: cannot open shared object file",),
    "A wheel for another CUDA is installed.",
    "Take NVSHMEM and DeepEP for the CUDA of torch.",
    ("EPD503", "EPD905"),
)
add(
    __name__,
    "EPL507",
    ERROR,
    "NCCL's library is not found",
    ("libnccl.so.2 can not be found",),
    "The build stops.",
    "Install nvidia-nccl-cu12 or -cu13, or set NCCL_DIR.",
)
add(
    __name__,
    "EPL508",
    ERROR,
    "The kernels were not built for this GPU",
    ("no kernel image is available for execution on the device",),
    "Nothing runs.",
    "Build with the GPU's architecture (TORCH_CUDA_ARCH_LIST, EP_RUNTIME_CUDA_ARCHITECTURES).",
)
