"""Shapes, routings and inputs of the kernel tests.

A rank's inputs are a function of (seed, rank), so every rank can compute every other's, and what
an expert answers is a function of its input row: the exact result is known without communication.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Shape:
    hidden: int
    num_topk: int
    num_experts: int
    max_tokens: int
    num_tokens: int | None = None  # None: as many as allowed
    routing: str = "random"

    def __str__(self) -> str:
        tokens = self.max_tokens if self.num_tokens is None else self.num_tokens
        return (
            f"h{self.hidden}-k{self.num_topk}-e{self.num_experts}-t{tokens}of{self.max_tokens}"
            f"-{self.routing}"
        )


@dataclass(frozen=True)
class Inputs:
    x: torch.Tensor
    topk_idx: torch.Tensor
    topk_weights: torch.Tensor


def tokens_of(shape: Shape, rank: int, size: int) -> int:
    full = shape.max_tokens if shape.num_tokens is None else shape.num_tokens
    if shape.routing == "silent_rank" and rank == size - 1:
        return 0
    if shape.routing == "uneven":
        return (full * (rank + 1)) // size
    return full


def make_inputs(shape: Shape, seed: int, rank: int, size: int) -> Inputs:
    """CPU tensors of one rank."""
    draw = torch.Generator().manual_seed(seed * 1009 + rank)
    tokens, experts, topk = tokens_of(shape, rank, size), shape.num_experts, shape.num_topk
    x = (torch.randn(tokens, shape.hidden, generator=draw) * 0.1).bfloat16()
    if tokens:
        x[0, : shape.hidden // 2] *= 50.0  # one row with a wide range of magnitudes
        x[-1] = 0  # and one of nothing
    if shape.routing == "one_expert":
        topk_idx = torch.full((tokens, topk), -1, dtype=torch.int64)
        topk_idx[:, 0] = experts - 1
    elif shape.routing == "none":
        topk_idx = torch.full((tokens, topk), -1, dtype=torch.int64)
    elif shape.routing == "duplicates":
        topk_idx = torch.randint(0, experts, (tokens, topk), generator=draw)
        topk_idx[tokens // 2 :, 1:] = -1  # so that no expert gets more than max_tokens rows
        topk_idx[: tokens // 2, 2:] = -1
    else:
        scores = torch.rand(tokens, experts, generator=draw)
        topk_idx = scores.topk(topk, dim=-1).indices
        drop = torch.rand(tokens, topk, generator=draw) < 0.1
        topk_idx = topk_idx.masked_fill(drop, -1)
    topk_weights = torch.rand(tokens, topk, generator=draw)
    return Inputs(x, topk_idx.contiguous(), topk_weights)


def expert_gain(num_experts: int) -> torch.Tensor:
    return 0.25 + torch.arange(num_experts, dtype=torch.float32).remainder(7) * 0.125


def exact_combine(shape: Shape, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    """The float64 weighted sum of what the experts answer, and the sum of magnitudes."""
    gain = expert_gain(shape.num_experts)
    total = torch.zeros(inputs.x.shape, dtype=torch.float64)
    magnitude = torch.zeros_like(total)
    for k in range(inputs.topk_idx.shape[1]):
        expert = inputs.topk_idx[:, k]
        valid = (expert >= 0).unsqueeze(1)
        answer = (inputs.x.float() * gain[expert.clamp_min(0)].unsqueeze(1)).bfloat16().double()
        term = answer * inputs.topk_weights[:, k : k + 1].double()
        total += torch.where(valid, term, 0.0)
        magnitude += torch.where(valid, term.abs(), 0.0)
    return total, magnitude


def expert_answers(
    shape: Shape, seed: int, rank: int, size: int, src_info: torch.Tensor, layout: torch.Tensor
) -> torch.Tensor:
    """BF16 [L, R*M, H] on CPU: each valid row answered, NaN everywhere else."""
    local = shape.num_experts // size
    gain = expert_gain(shape.num_experts)
    rows = torch.full(
        (local, size * shape.max_tokens, shape.hidden), float("nan"), dtype=torch.bfloat16
    )
    for source in range(size):
        x = make_inputs(shape, seed, source, size).x.float()
        for expert in range(local):
            place = int(layout[expert, source])
            begin, count = place >> 32, place & 0xFFFFFFFF
            tokens = src_info[expert, begin : begin + count].long()
            answer = x[tokens] * gain[rank * local + expert]
            rows[expert, begin : begin + count] = answer.bfloat16()
    return rows
