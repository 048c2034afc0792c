"""Views of raw memory as tensors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ep_runtime.checks import require

if TYPE_CHECKING:
    import torch


def view_bytes(
    memory: torch.Tensor, dtype: torch.dtype, size: torch.Size | None, offset: int
) -> torch.Tensor:
    """View 1-D uint8 ``memory`` from byte ``offset`` on as ``dtype``, 1-D or as ``size``.

    Raises RuntimeError for an offset that is no multiple of the element size, or a size that does
    not fit.
    """
    width = dtype.itemsize
    require(
        0 <= offset <= memory.numel() and offset % width == 0,
        f"offset must be a multiple of {width} from 0 to {memory.numel()}, got {offset}.",
    )
    usable = (memory.numel() - offset) // width * width
    view = memory[offset : offset + usable].view(dtype)
    if size is None:
        return view
    count = math.prod(size)
    require(
        count <= view.numel(),
        f"size {list(size)} has {count} elements, but {view.numel()} fit behind the offset.",
    )
    return view[:count].view(size)
