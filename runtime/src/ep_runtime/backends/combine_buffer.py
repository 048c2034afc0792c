"""Memory of this rank that a caller fills for a ``zero_copy`` combine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from ep_runtime.backends.base import CombineRequest


class CombineBuffer:
    """Hands out rows for the next ``zero_copy`` combine, and gives them to that combine once."""

    def __init__(self) -> None:
        self._rows: torch.Tensor | None = None

    def hand_out(
        self, local_experts: int, rows: int, hidden: int, stride: int, device: torch.device
    ) -> torch.Tensor:
        """Allocate bfloat16 [local_experts, rows, hidden], rows ``stride`` elements apart."""
        memory = torch.empty((local_experts, rows, stride), dtype=torch.bfloat16, device=device)
        self._rows = memory[..., :hidden]
        return self._rows

    def take(self, request: CombineRequest) -> torch.Tensor:
        """Take what was handed out for this combine; RuntimeError if nothing was."""
        rows, self._rows = self._rows, None
        if rows is None or rows.shape != request.x.shape:
            raise RuntimeError(
                "zero_copy needs the rows in get_next_low_latency_combine_buffer(handle) of this "
                "very handle, which was not called since the last combine."
            )
        return rows
