"""What callers use of DeepEP V1's compiled module; the rest of it is private to DeepEP."""

from __future__ import annotations

from deep_ep import Buffer as _Buffer
from ep_runtime import Config, EventHandle, topk_idx_t

__all__ = [
    "Config",
    "EventHandle",
    "get_low_latency_rdma_size_hint",
    "is_sm90_compiled",
    "topk_idx_t",
]

get_low_latency_rdma_size_hint = _Buffer.get_low_latency_rdma_size_hint
is_sm90_compiled = _Buffer.is_sm90_compiled
