"""One buffer per process, group and shape, for programs that want no buffer of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from ep_runtime.buffer import Buffer

if TYPE_CHECKING:
    import torch.distributed as dist

AnyBuffer = TypeVar("AnyBuffer", bound=Buffer)

_buffers: dict[tuple[object, ...], Any] = {}


def get_buffer(
    group: dist.ProcessGroup, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int
) -> Buffer:
    """Give the process's low-latency buffer for this group and shape; made at the first call.

    Its queue pairs are one per local expert. It lives until ``destroy()``, after which the next
    call makes another. The first call is collective. Raises ValueError for shapes out of range.
    """
    return shared_buffer(Buffer, group, num_max_dispatch_tokens_per_rank, hidden, num_experts)


def shared_buffer(
    kind: type[AnyBuffer],
    group: dist.ProcessGroup,
    num_max_dispatch_tokens_per_rank: int,
    hidden: int,
    num_experts: int,
) -> AnyBuffer:
    """Do as ``get_buffer``, with a class of buffers derived from ``Buffer``."""
    key = (kind, group, num_max_dispatch_tokens_per_rank, hidden, num_experts)
    buffer: AnyBuffer | None = _buffers.get(key)
    if buffer is None or buffer.runtime is None:
        num_ranks = group.size()
        num_bytes = kind.get_low_latency_rdma_size_hint(
            num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts
        )
        buffer = kind(
            group,
            num_rdma_bytes=num_bytes,
            low_latency_mode=True,
            num_qps_per_rank=num_experts // num_ranks,
            explicitly_destroy=True,
        )
        _buffers[key] = buffer
    return buffer
