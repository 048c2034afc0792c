"""The inputs of a run, each a pure function of (seed, rank).

So every rank can recompute what any other rank sent without asking it, and the check of the
results depends on no communication at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ep_runtime.bench import patterns
from ep_runtime.bench.options import Parameters

# A routing with holes beside the plain one: an entry of -1 selects no expert.
FULL = "full"
HOLES = "holed"
_HOLE_SHARE = 1 / 8
# LogFMT encodes only groups of magnitudes below 1; as many normal values are never so small.
_LOGFMT_FACTOR = 1 / 16


@dataclass(frozen=True)
class Inputs:
    """What one rank dispatches, on the CPU.

    Shapes: ``x`` [T, H] bfloat16; ``topk_idx`` [T, K] int64, distinct experts in a row, -1
    selects nothing; ``topk_weights`` [T, K] float32, positive.
    """

    x: torch.Tensor
    topk_idx: torch.Tensor
    topk_weights: torch.Tensor


def make_inputs(parameters: Parameters, rank: int, routing: str) -> Inputs:
    """Draw the inputs of ``rank``: normal tokens, the run's routing, positive weights."""
    p = parameters
    generator = np.random.default_rng([p.seed, rank])
    x = generator.standard_normal((p.num_tokens, p.hidden), dtype=np.float32)
    if p.use_logfmt:
        x *= np.float32(_LOGFMT_FACTOR)
    weights = generator.random((p.num_tokens, p.num_topk), dtype=np.float32) + np.float32(0.125)
    shape = patterns.Shape(p.num_tokens, p.num_experts, p.num_topk)
    topk = patterns.parse(p.routing).draw(shape, rank, p.seed)
    if routing == HOLES:
        topk[generator.random(topk.shape) < _HOLE_SHARE] = -1
    return Inputs(
        x=torch.from_numpy(x).to(torch.bfloat16),
        topk_idx=torch.from_numpy(topk),
        topk_weights=torch.from_numpy(weights),
    )


def expert_output(x: torch.Tensor, expert: int) -> torch.Tensor:
    """Apply the pretended ``expert`` to rows ``x`` (bfloat16 in and out).

    A factor that differs between neighbouring experts, exact in bfloat16, so that a row that
    comes back from a wrong expert shows.
    """
    return (x.float() * (1 + (expert % 128) / 128)).to(torch.bfloat16)
