"""What callers of DeepEP V1 import from ``deep_ep.utils``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from ep_runtime import EventHandle, EventOverlap

if TYPE_CHECKING:
    import torch.distributed as dist

__all__ = ["EventHandle", "EventOverlap", "check_nvlink_connections"]


def check_nvlink_connections(group: dist.ProcessGroup) -> None:
    """AssertionError for more than two ranks on PCIe cards, which NVLink joins in pairs at most.

    ``Buffer`` itself does not ask: it also works over PCIe.
    """
    if torch.cuda.is_available() and "PCIE" in torch.cuda.get_device_name().upper():
        assert group.size() <= 2, (
            f"PCIe GPUs have NVLink only in pairs, but the group has {group.size()} ranks."
        )
