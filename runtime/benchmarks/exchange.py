"""torch's all_to_all of the same tokens: what a program has without an EP runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from contender import together

if TYPE_CHECKING:
    from contender import Contender


class AllToAll:
    """Dispatch and combine of BF16 rows, one for each selection, with all sizes known beforehand.

    That is to its advantage: a real program would have to exchange the counts in each step.
    """

    def __init__(self, like: Contender) -> None:
        ranks = dist.get_world_size()
        self.x, self.weights = like.x, like.weights
        destination = like.topk_idx.flatten() // like.local_experts
        self.order = destination.argsort(stable=True)
        self.tokens = self.order // like.case.topk
        self.place = self.order.argsort()
        self.sent = torch.bincount(destination, minlength=ranks).tolist()
        everyones: list[list[int]] = [[]] * ranks
        dist.all_gather_object(everyones, self.sent)
        self.received = [sent[dist.get_rank()] for sent in everyones]
        hidden = like.case.hidden
        self.arrived = self.x.new_empty(sum(self.received), hidden)
        self.returned = self.x.new_empty(sum(self.sent), hidden)

    def dispatch(self) -> None:
        """Send each selection's row to its expert's rank."""
        rows = self.x.index_select(0, self.tokens)
        dist.all_to_all_single(self.arrived, rows, self.received, self.sent)

    def combine(self) -> torch.Tensor:
        """Send the rows back and add them up, weighted."""
        dist.all_to_all_single(self.returned, self.arrived, self.sent, self.received)
        rows = self.returned.index_select(0, self.place).unflatten(0, self.weights.shape)
        return torch.einsum("tkh,tk->th", rows, self.weights.bfloat16())

    def pair(self) -> None:
        """Dispatch, then combine."""
        self.dispatch()
        self.combine()

    def check(self) -> None:
        """Identity experts must give every token back, weighted."""
        self.dispatch()
        out, exact = self.combine(), self.x.double() * self.weights.double().sum(1, keepdim=True)
        error = ((out.double() - exact).norm() / exact.norm()).item()
        assert error < 0.02, f"all_to_all is off by {error}"

    def measure(self) -> dict[str, float]:
        """Take the times in us, by the names of the contenders' figures."""
        graphed = {"dispatch": self.dispatch, "combine": self.combine, "pair": self.pair}
        return {**together(graphed, "graph"), **together({"pair": self.pair}, "eager")}
