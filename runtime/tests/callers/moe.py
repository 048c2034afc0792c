"""A layer of experts so plain that each rank knows the answer for its own tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Batch:
    """``x`` bfloat16 [T, H]; ``topk_idx`` int64 and ``topk_weights`` float32 [T, K]."""

    x: torch.Tensor
    topk_idx: torch.Tensor
    topk_weights: torch.Tensor


def make_batch(
    seed: int, rank: int, tokens: int, hidden: int, topk: int, experts: int, device: torch.device
) -> Batch:
    draw = torch.Generator().manual_seed(1000 * seed + rank)
    x = torch.randn((tokens, hidden), generator=draw).bfloat16()
    scores = torch.rand((tokens, experts), generator=draw)
    weights, topk_idx = scores.topk(topk, dim=1)
    topk_idx[::5, 0] = -1
    return Batch(x.to(device), topk_idx.to(device), (weights / weights.sum(1, True)).to(device))


def gain(expert: torch.Tensor) -> torch.Tensor:
    """What an expert multiplies its tokens with."""
    return 1 + (expert % 5) / 4


def expected(batch: Batch) -> torch.Tensor:
    """float32 [T, H]: the weighted sum over each token's experts."""
    share = torch.where(batch.topk_idx >= 0, batch.topk_weights * gain(batch.topk_idx), 0)
    return batch.x.float() * share.sum(1, keepdim=True)


def expert_outputs(expert_x: torch.Tensor, counts: torch.Tensor, rank: int) -> torch.Tensor:
    """bfloat16 [L, rows, H] of a low-latency dispatch through the experts; unused rows are NaN."""
    local, rows, _ = expert_x.shape
    experts = torch.arange(rank * local, (rank + 1) * local, device=expert_x.device)
    used = torch.arange(rows, device=expert_x.device) < counts.unsqueeze(1)
    computed = expert_x.float() * gain(experts).view(-1, 1, 1)
    return torch.where(used.unsqueeze(2), computed, torch.nan).bfloat16()


def weighted_outputs(
    recv_x: torch.Tensor, recv_topk_idx: torch.Tensor, recv_weights: torch.Tensor, first: int
) -> torch.Tensor:
    """bfloat16 [N, H] of a high-throughput dispatch through the experts from ``first`` on."""
    share = torch.where(recv_topk_idx >= 0, recv_weights * gain(recv_topk_idx + first), 0)
    return (recv_x.float() * share.sum(1, keepdim=True)).bfloat16()
