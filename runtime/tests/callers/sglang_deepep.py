"""The calls of SGLang's DeepEPBuffer and its two dispatchers, in mode "auto" on one buffer.

SGLang gives the device's process group, prefills with the high-throughput calls, cleans the
buffer, and decodes with the low-latency ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from moe import expected, expert_outputs, make_batch, weighted_outputs

try:
    from deep_ep import Buffer, Config

    USE_DEEPEP = True
except ImportError:
    USE_DEEPEP = False

if TYPE_CHECKING:
    import torch.distributed as dist

HIDDEN, TOPK, MAX_TOKENS, EXPERTS_PER_RANK = 2048, 4, 16, 4
CONFIG = {
    "normal_dispatch": {
        "num_sms": 16,
        "num_max_nvl_chunked_send_tokens": 8,
        "num_max_nvl_chunked_recv_tokens": 256,
        "num_max_rdma_chunked_send_tokens": 6,
        "num_max_rdma_chunked_recv_tokens": 128,
    },
    "normal_combine": {
        "num_sms": 16,
        "num_max_nvl_chunked_send_tokens": 4,
        "num_max_nvl_chunked_recv_tokens": 256,
        "num_max_rdma_chunked_send_tokens": 6,
        "num_max_rdma_chunked_recv_tokens": 128,
    },
}


def make_buffer(
    group: dist.ProcessGroup, num_experts: int, configs: list[Config], backend: dict[str, Any]
) -> Buffer:
    hidden_bytes = HIDDEN * 2
    nvl_bytes = rdma_bytes = 0
    for config in configs:
        nvl_bytes = max(config.get_nvl_buffer_size_hint(hidden_bytes, group.size()), nvl_bytes)
        rdma_bytes = max(config.get_rdma_buffer_size_hint(hidden_bytes, group.size()), rdma_bytes)
    rdma_bytes = max(
        Buffer.get_low_latency_rdma_size_hint(MAX_TOKENS, HIDDEN, group.size(), num_experts),
        rdma_bytes,
    )
    return Buffer(
        group,
        nvl_bytes,
        rdma_bytes,
        low_latency_mode=True,
        num_qps_per_rank=max(num_experts // group.size(), Buffer.num_sms // 2),
        allow_mnnvl=True,
        **backend,
    )


def prefill(
    buffer: Buffer, batch: Any, num_experts: int, rank: int, dispatch: Config, combine: Config
) -> None:
    previous = Buffer.capture()
    per_rank, per_rdma_rank, per_expert, in_rank, previous = buffer.get_dispatch_layout(
        batch.topk_idx,
        num_experts,
        previous_event=previous,
        async_finish=True,
        allocate_on_comm_stream=previous is not None,
    )
    recv_x, recv_topk_idx, recv_weights, counts, handle, event = buffer.dispatch(
        batch.x,
        topk_idx=batch.topk_idx,
        topk_weights=batch.topk_weights,
        num_tokens_per_rank=per_rank,
        num_tokens_per_rdma_rank=per_rdma_rank,
        is_token_in_rank=in_rank,
        num_tokens_per_expert=per_expert,
        previous_event=previous,
        async_finish=True,
        allocate_on_comm_stream=True,
        expert_alignment=128,
        config=dispatch,
    )
    event.current_stream_wait()
    assert all(count % 128 == 0 for count in counts)
    computed = weighted_outputs(recv_x, recv_topk_idx, recv_weights, rank * EXPERTS_PER_RANK)
    previous = Buffer.capture()
    combined, _, event = buffer.combine(
        computed,
        handle,
        async_finish=True,
        previous_event=previous,
        allocate_on_comm_stream=True,
        config=combine,
    )
    event.current_stream_wait()
    torch.testing.assert_close(combined.float(), expected(batch), rtol=0.03, atol=0.05)


def decode(buffer: Buffer, batch: Any, num_experts: int, rank: int, return_recv_hook: bool) -> None:
    recv_x, counts, handle, event, hook = buffer.low_latency_dispatch(
        batch.x,
        batch.topk_idx,
        MAX_TOKENS,
        num_experts,
        use_fp8=False,
        async_finish=not return_recv_hook,
        return_recv_hook=return_recv_hook,
        round_scale=False,
        use_ue8m0=False,
    )
    hook() if return_recv_hook else event.current_stream_wait()
    combined, event, hook = buffer.low_latency_combine(
        x=expert_outputs(recv_x, counts, rank),
        topk_idx=batch.topk_idx,
        topk_weights=batch.topk_weights,
        handle=handle,
        async_finish=not return_recv_hook,
        return_recv_hook=return_recv_hook,
    )
    hook() if return_recv_hook else event.current_stream_wait()
    torch.testing.assert_close(combined.float(), expected(batch), rtol=0.03, atol=0.05)


def run(group: dist.ProcessGroup, device: torch.device, backend: dict[str, Any]) -> None:
    assert USE_DEEPEP
    rank = group.rank()
    num_experts = EXPERTS_PER_RANK * group.size()
    if group.size() in (2, 4, 8):  # without --deepep-config; SGLang serves only tuned sizes then
        make_tuned = (Buffer.get_dispatch_config, Buffer.get_combine_config)
        tuned = [make(group.size()) for make in make_tuned]
        assert all(
            config.get_nvl_buffer_size_hint(2 * HIDDEN, group.size()) > 0 for config in tuned
        )
    dispatch, combine = Config(**CONFIG["normal_dispatch"]), Config(**CONFIG["normal_combine"])
    Buffer.set_num_sms(CONFIG["normal_dispatch"]["num_sms"])
    buffer = make_buffer(group, num_experts, [dispatch, combine], backend)
    assert buffer.low_latency_mode
    assert buffer.group_size == group.size()
    for round_ in range(2):
        long = make_batch(round_, rank, 60 + rank, HIDDEN, TOPK, num_experts, device)
        prefill(buffer, long, num_experts, rank, dispatch, combine)
        buffer.clean_low_latency_buffer(MAX_TOKENS, HIDDEN, num_experts)
        for hook in (True, False):
            short = make_batch(
                10 + round_, rank, MAX_TOKENS - rank, HIDDEN, TOPK, num_experts, device
            )
            decode(buffer, short, num_experts, rank, hook)
    Buffer.set_num_sms(20)
