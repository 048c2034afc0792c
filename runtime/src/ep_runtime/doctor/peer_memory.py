# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""The two ways of a NIC into GPU memory: DMA-BUF of the kernel, or the module nvidia_peermem."""

from __future__ import annotations

import re
from typing import List, Optional

from .model import Facts

_KERNEL = (5, 12)


def dma_buf_obstacles(facts: Facts, release: Optional[str], flavour: Optional[str]) -> List[str]:
    """What keeps DMA-BUF from working with kernel ``release`` and that ``flavour`` of the driver.

    It needs a kernel since 5.12 with DMA_SHARED_BUFFER and the open driver. Empty: nothing.
    """
    found = []
    if tuple(int(part) for part in re.findall(r"\d+", release or "")[:2]) < _KERNEL:
        found.append(f"kernel {release}")
    if facts["kernel"]["config"]["DMA_SHARED_BUFFER"] == "n":
        found.append("CONFIG_DMA_SHARED_BUFFER is off")
    if flavour == "proprietary":
        found.append("the proprietary driver")
    if facts["environment"].get("NVSHMEM_IB_DISABLE_DMABUF", {}).get("value") in ("1", "true"):
        found.append("NVSHMEM_IB_DISABLE_DMABUF is set")
    return found
