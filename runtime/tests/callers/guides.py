"""The examples of two public guides to DeepEP, in their own calls and values.

"How to Configure IBGDA in DeepEP" and "How to Configure DeepEP Low-Latency Mode QP". Where there is
no GPU only the stream is left out: there is none.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import deep_ep
import torch
from deep_ep import get_buffer
from moe import expected, expert_outputs, make_batch

if TYPE_CHECKING:
    import torch.distributed as dist

RANKS = 8
HIDDEN, NUM_EXPERTS, NUM_TOKENS, TOPK = 7168, 64, 128, 8
SET_BY_BUFFER = {
    "NVSHMEM_DISABLE_P2P": "0",
    "NVSHMEM_IB_ENABLE_IBGDA": "1",
    "NVSHMEM_IBGDA_NUM_RC_PER_PE": "4",
    "NVSHMEM_QP_DEPTH": "1024",
    "NVSHMEM_MAX_TEAMS": "7",
    "NVSHMEM_DISABLE_NVLS": "1",
    "NVSHMEM_CUMEM_GRANULARITY": str(2**29),
}


def ibgda(group: dist.ProcessGroup) -> None:
    """A buffer by rank and size; what it sets for NVSHMEM; its communication stream."""
    for name in SET_BY_BUFFER:
        os.environ.pop(name, None)
    buf = deep_ep.Buffer(
        rank=group.rank(),
        group_size=8,
        num_nvl_bytes=1 << 30,
        num_rdma_bytes=1 << 30,
        low_latency_mode=True,
        num_qps_per_rank=4,
        allow_nvlink_for_low_latency_mode=True,
    )
    assert {name: os.environ[name] for name in SET_BY_BUFFER} == SET_BY_BUFFER
    if torch.cuda.is_available():
        comm_stream = buf.get_comm_stream()
        torch.cuda.synchronize(comm_stream.device)
    # Four queue pairs a rank serve four experts a rank.
    batch = make_batch(1, group.rank(), 64, HIDDEN, TOPK, 32, _device())
    _round_trip(buf, batch, 64, 32, group.rank())


def queue_pairs(group: dist.ProcessGroup) -> None:
    """As many queue pairs as local experts, and the buffer sized by the hint."""
    world_size = group.size()
    assert NUM_EXPERTS % world_size == 0
    local_experts = NUM_EXPERTS // world_size
    buffer = deep_ep.Buffer(
        group,
        num_nvl_bytes=0,
        num_rdma_bytes=deep_ep.Buffer.get_low_latency_rdma_size_hint(
            NUM_TOKENS, HIDDEN, world_size, NUM_EXPERTS
        ),
        low_latency_mode=True,
        num_qps_per_rank=local_experts,
        allow_nvlink_for_low_latency_mode=True,
        explicitly_destroy=True,
    )
    batch = make_batch(2, group.rank(), NUM_TOKENS, HIDDEN, TOPK, NUM_EXPERTS, _device())
    _round_trip(buffer, batch, NUM_TOKENS, NUM_EXPERTS, group.rank())
    buffer.destroy()


def shared_buffer(group: dist.ProcessGroup) -> None:
    """``get_buffer`` computes local experts and queue pairs, and keeps one buffer."""
    given = {"num_max_dispatch_tokens_per_rank": 128, "hidden": 7168, "num_experts": 64}
    buffer = get_buffer(group=group, **given)
    assert get_buffer(group=group, **given) is buffer
    assert isinstance(buffer, deep_ep.Buffer)
    batch = make_batch(3, group.rank(), 100, HIDDEN, TOPK, 64, _device())
    _round_trip(buffer, batch, 128, 64, group.rank())
    buffer.destroy()


def _round_trip(
    buffer: deep_ep.Buffer, batch: Any, max_tokens: int, num_experts: int, rank: int
) -> None:
    recv_hidden, recv_counts, handle, event, hook = buffer.low_latency_dispatch(
        batch.x,
        batch.topk_idx,
        num_max_dispatch_tokens_per_rank=max_tokens,
        num_experts=num_experts,
        async_finish=False,
        return_recv_hook=True,
    )
    hook()
    data, scales = recv_hidden
    try:
        buffer.low_latency_combine(data, batch.topk_idx, batch.topk_weights, handle)
        raise AssertionError("FP8 rows were taken for BF16")
    except RuntimeError as error:
        assert "must be torch.bfloat16, got torch.float8_e4m3fn" in str(error)
    rows = (data.float().unflatten(2, (-1, 128)) * scales.unsqueeze(3)).flatten(2)
    combined, event2, hook2 = buffer.low_latency_combine(
        expert_outputs(rows, recv_counts, rank), batch.topk_idx, batch.topk_weights, handle
    )
    assert (event.event, event2.event, hook2) == (None, None, None)
    torch.testing.assert_close(combined.float(), expected(batch), rtol=0.08, atol=0.08)


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def run(group: dist.ProcessGroup, device: torch.device, backend: dict[str, Any]) -> None:
    """The backend is chosen as it is for their readers."""
    ibgda(group)
    queue_pairs(group)
    shared_buffer(group)
