"""torch's all_to_all of the same tokens: what a program has without an EP runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from ep_runtime.bench.routing import Inputs


class AllToAll:
    """Dispatch and combine of BF16 rows, one for each selection, with all sizes known beforehand.

    That is to its advantage: a real program would have to exchange the counts in each step.
    ``group``, of all ranks, carries the rows and must serve the device that ``inputs`` are on.
    Creation is collective over the default group.
    """

    # Weights are BF16 in the sum, and so is each product.
    TOLERANCE = 0.02

    def __init__(
        self, inputs: Inputs, local_experts: int, group: dist.ProcessGroup | None = None
    ) -> None:
        ranks = dist.get_world_size()
        self.group, self.x, self.weights = group, inputs.x, inputs.topk_weights
        selections = inputs.topk_idx.flatten()
        chosen = (selections >= 0).nonzero().flatten()
        destination = selections[chosen].div(local_experts, rounding_mode="floor")
        order = chosen[destination.argsort(stable=True)]
        self.tokens = order.div(inputs.topk_idx.shape[1], rounding_mode="floor")
        # Of each row that comes back, in the order of selections; what selects nothing weighs 0.
        self.place = torch.zeros_like(selections)
        self.place[order] = torch.arange(order.numel(), device=order.device)
        self.scales = self.weights * (inputs.topk_idx >= 0)
        self.sent = torch.bincount(destination, minlength=ranks).tolist()
        everyones: list[list[int]] = [[]] * ranks
        dist.all_gather_object(everyones, self.sent)
        self.received = [sent[dist.get_rank()] for sent in everyones]
        hidden = self.x.shape[1]
        self.arrived = self.x.new_empty(sum(self.received), hidden)
        # A row more than come back, so that a rank that selects nothing has one to weigh by 0.
        self.returned = self.x.new_zeros(sum(self.sent) + 1, hidden)

    def dispatch(self) -> None:
        """Send each selection's row to its expert's rank."""
        rows = self.x.index_select(0, self.tokens)
        dist.all_to_all_single(self.arrived, rows, self.received, self.sent, group=self.group)

    def combine(self) -> torch.Tensor:
        """Send the rows back and add them up, weighted."""
        dist.all_to_all_single(
            self.returned[:-1], self.arrived, self.sent, self.received, group=self.group
        )
        rows = self.returned.index_select(0, self.place).view(*self.weights.shape, -1)
        return torch.einsum("tkh,tk->th", rows, self.scales.bfloat16())

    def pair(self) -> None:
        """Dispatch, then combine."""
        self.dispatch()
        self.combine()

    def error(self) -> float:
        """How far identity experts' sums are off, relative to them; NaN counts as infinite."""
        self.dispatch()
        out = self.combine()
        exact = self.x.double() * self.scales.double().sum(1, keepdim=True)
        error = (out.double() - exact).norm() / exact.norm().clamp_min(1e-30)
        return float(error.nan_to_num(nan=float("inf")).item())

    def check(self) -> None:
        """Identity experts must give every token back, weighted. AssertionError if not."""
        error = self.error()
        assert error < self.TOLERANCE, f"all_to_all is off by {error}"
