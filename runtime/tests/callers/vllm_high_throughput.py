"""The calls of vLLM's high-throughput all-to-all: manager, prepare and finalize."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import deep_ep
import torch
from moe import expected, make_batch, weighted_outputs

if TYPE_CHECKING:
    import torch.distributed as dist

HIDDEN, TOPK, EXPERTS_PER_RANK = 1024, 4, 4
# Numbers of ranks that vLLM asks a configuration for; else it passes None.
AVAILABLE_RANKS = (2, 4, 8, 16, 24, 32, 64, 128, 144, 160)


def run(group: dist.ProcessGroup, device: torch.device, backend: dict[str, Any]) -> None:
    num_sms = 20
    deep_ep.Buffer.set_num_sms(num_sms)
    buffer = deep_ep.Buffer(
        group=group,
        num_nvl_bytes=1024 * 1024 * 1024,
        num_rdma_bytes=0,
        low_latency_mode=False,
        num_qps_per_rank=1,
        explicitly_destroy=True,
        **backend,
    )
    ranks, rank = group.size(), group.rank()
    num_experts = EXPERTS_PER_RANK * ranks
    for seed, async_finish in ((1, False), (2, True)):
        batch = make_batch(seed, rank, 50 + rank, HIDDEN, TOPK, num_experts, device)
        _layer(buffer, batch, num_experts, ranks, rank * EXPERTS_PER_RANK, async_finish)
    buffer.destroy()


def _layer(
    buffer: deep_ep.Buffer, batch: Any, num_experts: int, ranks: int, first: int, async_finish: bool
) -> None:
    known = ranks in AVAILABLE_RANKS
    previous = deep_ep.Buffer.capture()
    per_rank, per_rdma_rank, per_expert, in_rank, event = buffer.get_dispatch_layout(
        topk_idx=batch.topk_idx,
        num_experts=num_experts,
        previous_event=previous,
        async_finish=False,
        allocate_on_comm_stream=False,
    )
    recv_x, recv_topk_idx, recv_weights, per_expert_list, handle, event = buffer.dispatch(
        x=batch.x,
        handle=None,
        num_tokens_per_rank=per_rank,
        num_tokens_per_rdma_rank=per_rdma_rank,
        is_token_in_rank=in_rank,
        num_tokens_per_expert=per_expert,
        topk_idx=batch.topk_idx,
        topk_weights=batch.topk_weights,
        expert_alignment=1,
        config=deep_ep.Buffer.get_dispatch_config(ranks) if known else None,
        previous_event=previous,
        async_finish=async_finish,
        allocate_on_comm_stream=False,
    )
    if event.event is not None:
        event.current_stream_wait()
    assert sum(per_expert_list) == int((recv_topk_idx >= 0).sum())
    # vLLM numbers experts over all ranks, and gives -1 the number of one that is not here.
    everywhere = torch.where(
        recv_topk_idx == -1, num_experts - 1 if first == 0 else 0, recv_topk_idx + first
    )
    assert bool((everywhere >= 0).all())
    combined, _, event = buffer.combine(
        x=weighted_outputs(recv_x, recv_topk_idx, recv_weights, first),
        handle=handle,
        topk_weights=None,
        config=deep_ep.Buffer.get_combine_config(ranks) if known else None,
        previous_event=deep_ep.Buffer.capture(),
        async_finish=async_finish,
        allocate_on_comm_stream=False,
    )
    if async_finish:
        assert event.event is not None
        event.current_stream_wait()
    torch.testing.assert_close(combined.float(), expected(batch), rtol=0.03, atol=0.05)
