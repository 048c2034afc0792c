"""A buffer of one rank in the test's own process, and calls on it with good arguments."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from ep_runtime import Buffer

if TYPE_CHECKING:
    from collections.abc import Iterator

M, H, E, K, T = 8, 512, 4, 2, 6
SIZE = Buffer.get_low_latency_rdma_size_hint(M, H, 1, E)


def make(**options: Any) -> Buffer:
    defaults = {
        "rank": 0,
        "group_size": 1,
        "num_rdma_bytes": SIZE,
        "low_latency_mode": True,
        "num_qps_per_rank": E,
        "explicitly_destroy": True,
        "backend": "reference",
    }
    return Buffer(**{**defaults, **options})


def as_before() -> Iterator[None]:
    """Leave no process group and no environment variable behind."""
    before = dict(os.environ)
    yield
    dist.destroy_process_group()
    for name in set(os.environ) - set(before):
        del os.environ[name]
    os.environ.update(before)


def dispatch(buffer: Buffer, **changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "x": torch.zeros(T, H, dtype=torch.bfloat16),
        "topk_idx": torch.zeros(T, K, dtype=torch.int64) + torch.arange(K),
        "num_max_dispatch_tokens_per_rank": M,
        "num_experts": E,
    }
    return buffer.low_latency_dispatch(**{**arguments, **changes})


def combine(buffer: Buffer, **changes: Any) -> Any:
    arguments: dict[str, Any] = {
        "x": torch.zeros(E, M, H, dtype=torch.bfloat16),
        "topk_idx": torch.zeros(T, K, dtype=torch.int64) + torch.arange(K),
        "topk_weights": torch.ones(T, K),
    }
    if "handle" not in changes:
        arguments["handle"] = dispatch(buffer)[2]
    return buffer.low_latency_combine(**{**arguments, **changes})
