"""The imports of Megatron's fused_a2a, and its two differentiable functions over one buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from deep_ep import Buffer
from deep_ep.utils import EventHandle, EventOverlap
from moe import make_batch

try:
    from deep_ep import HybridEPBuffer  # noqa: F401 - asked for as Megatron does

    HAVE_HYBRIDEP = True
except ImportError:
    HAVE_HYBRIDEP = False

if TYPE_CHECKING:
    import torch.distributed as dist

HIDDEN, TOPK, EXPERTS_PER_RANK = 256, 4, 2

_kept: dict[str, Any] = {"buffer": None, "backend": {}}


def get_buffer(group: dist.ProcessGroup, hidden_bytes: int) -> Buffer:
    """Make the buffer again when it is of another group or too small."""
    nvl_bytes = rdma_bytes = 0
    for config in (
        Buffer.get_dispatch_config(group.size()),
        Buffer.get_combine_config(group.size()),
    ):
        nvl_bytes = max(config.get_nvl_buffer_size_hint(hidden_bytes, group.size()), nvl_bytes)
        rdma_bytes = max(config.get_rdma_buffer_size_hint(hidden_bytes, group.size()), rdma_bytes)
    buffer = _kept["buffer"]
    if (
        buffer is None
        or buffer.group != group
        or buffer.num_nvl_bytes < nvl_bytes
        or buffer.num_rdma_bytes < rdma_bytes
    ):
        buffer = _kept["buffer"] = Buffer(group, nvl_bytes, rdma_bytes, **_kept["backend"])
    return buffer


class FusedDispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, token_indices, token_probs, num_experts, group):
        previous = EventOverlap(EventHandle())
        buffer = get_buffer(group, x.size(1) * max(x.element_size(), 2))
        per_rank, per_rdma_rank, per_expert, in_rank, event = buffer.get_dispatch_layout(
            token_indices,
            num_experts,
            previous_event=previous,
            async_finish=True,
            allocate_on_comm_stream=True,
        )
        recv_x, recv_indices, recv_probs, counts, handle, after = buffer.dispatch(
            x,
            topk_idx=token_indices,
            topk_weights=token_probs,
            num_tokens_per_rank=per_rank,
            num_tokens_per_rdma_rank=per_rdma_rank,
            is_token_in_rank=in_rank,
            num_tokens_per_expert=per_expert,
            previous_event=event,
            async_finish=True,
            allocate_on_comm_stream=True,
        )
        after.current_stream_wait()
        ctx.group, ctx.handle = group, handle
        ctx.mark_non_differentiable(recv_indices)
        return recv_x, recv_indices, recv_probs, torch.tensor(counts), handle

    @staticmethod
    def backward(ctx, grad_x, grad_indices, grad_probs, grad_counts, grad_handle):
        buffer = get_buffer(ctx.group, grad_x.size(1) * max(grad_x.element_size(), 2))
        x, probs, after = buffer.combine(
            grad_x.contiguous(),
            ctx.handle,
            topk_weights=grad_probs.float(),
            previous_event=EventOverlap(EventHandle()),
            async_finish=True,
            allocate_on_comm_stream=True,
        )
        after.current_stream_wait()
        return x, None, probs, None, None


class FusedCombine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, handle):
        buffer = get_buffer(group, x.size(1) * max(x.element_size(), 2))
        combined, _, after = buffer.combine(
            x,
            handle=handle,
            async_finish=True,
            previous_event=EventOverlap(EventHandle()),
            allocate_on_comm_stream=True,
        )
        after.current_stream_wait()
        ctx.group, ctx.handle = group, handle
        return combined

    @staticmethod
    def backward(ctx, grad):
        buffer = get_buffer(ctx.group, grad.size(1) * max(grad.element_size(), 2))
        x, _, _, _, _, after = buffer.dispatch(
            grad.contiguous(),
            handle=ctx.handle,
            previous_event=EventOverlap(EventHandle()),
            async_finish=True,
            allocate_on_comm_stream=True,
        )
        after.current_stream_wait()
        return x, None, None


def run(group: dist.ProcessGroup, device: torch.device, backend: dict[str, Any]) -> None:
    assert not HAVE_HYBRIDEP
    _kept["backend"] = backend
    experts = EXPERTS_PER_RANK * group.size()
    batch = make_batch(5, group.rank(), 20 + group.rank(), HIDDEN, TOPK, experts, device)
    x = batch.x.clone().requires_grad_()
    probs = batch.topk_weights.clone().requires_grad_()
    recv_x, recv_indices, recv_probs, counts, handle = FusedDispatch.apply(
        x, batch.topk_idx, probs, experts, group
    )
    assert int(counts.sum()) == int((recv_indices >= 0).sum())
    first = group.rank() * EXPERTS_PER_RANK
    gains = torch.where(recv_indices >= 0, 1.0 + recv_indices + first, 0)
    computed = (recv_x.float() * (recv_probs * gains).sum(1, keepdim=True)).bfloat16()
    FusedCombine.apply(computed, group, handle).float().sum().backward()

    # sum over tokens t, channels c and places k of x[t, c] * p[t, k] * (1 + expert[t, k])
    share = torch.where(batch.topk_idx >= 0, 1.0 + batch.topk_idx, 0)
    want_x = (batch.topk_weights * share).sum(1, keepdim=True).expand_as(x)
    torch.testing.assert_close(x.grad.float(), want_x, rtol=0.03, atol=0.02)
    want_probs = batch.x.float().sum(1, keepdim=True) * share
    torch.testing.assert_close(probs.grad, want_probs, rtol=1e-3, atol=1e-2)
    _kept["buffer"] = None
