"""vLLM's own prepare and finalize classes over this ``deep_ep``; needs vLLM, but no GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import deep_ep
import torch
from moe import expected, expert_outputs, make_batch, weighted_outputs
from vllm.model_executor.layers.fused_moe.config import FUSED_MOE_UNQUANTIZED_CONFIG
from vllm.model_executor.layers.fused_moe.modular_kernel import ExpertTokensMetadata
from vllm.model_executor.layers.fused_moe.prepare_finalize.deepep_ht import (
    DeepEPHTPrepareAndFinalize,
)
from vllm.model_executor.layers.fused_moe.prepare_finalize.deepep_ll import (
    DeepEPLLPrepareAndFinalize,
)
from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import (
    TopKWeightAndReduceDelegate,
    TopKWeightAndReduceNoOP,
)
from vllm.utils.import_utils import has_deep_ep, has_deep_ep_v2

if TYPE_CHECKING:
    import torch.distributed as dist

HIDDEN, TOPK, MAX_TOKENS, EXPERTS_PER_RANK = 2048, 4, 16, 4


def counts_without_pinned_memory(counts: list[int], device: torch.device) -> ExpertTokensMetadata:
    """What vLLM makes of the list; its own way needs a GPU's driver for pinned memory."""
    tensor = torch.tensor(counts, dtype=torch.int32)
    return ExpertTokensMetadata(expert_num_tokens=tensor, expert_num_tokens_cpu=tensor)


def low_latency(
    group: dist.ProcessGroup, device: torch.device, backend: dict[str, Any], use_fp8: bool
) -> None:
    ranks, rank = group.size(), group.rank()
    experts = EXPERTS_PER_RANK * ranks
    size = deep_ep.Buffer.get_low_latency_rdma_size_hint(MAX_TOKENS, HIDDEN, ranks, experts)
    buffer = deep_ep.Buffer(
        group,
        num_rdma_bytes=size,
        low_latency_mode=True,
        num_qps_per_rank=EXPERTS_PER_RANK,
        explicitly_destroy=True,
        **backend,
    )
    layer = DeepEPLLPrepareAndFinalize(buffer, MAX_TOKENS, ranks, use_fp8_dispatch=use_fp8)
    for seed in range(3):
        batch = make_batch(seed, rank, MAX_TOKENS - seed, HIDDEN, TOPK, experts, device)
        weights, choices = batch.topk_weights, batch.topk_idx
        expert_x, scales, about, _, _ = layer.prepare(
            batch.x, weights, choices, experts, None, False, FUSED_MOE_UNQUANTIZED_CONFIG
        )
        assert scales is None
        output = torch.empty_like(batch.x)
        computed = expert_outputs(expert_x, about.expert_num_tokens, rank)
        layer.finalize(output, computed, weights, choices, False, TopKWeightAndReduceDelegate())
        tolerance = 0.08 if use_fp8 else 0.02
        torch.testing.assert_close(output.float(), expected(batch), rtol=tolerance, atol=0.05)
    buffer.destroy()


def high_throughput(
    group: dist.ProcessGroup, device: torch.device, backend: dict[str, Any]
) -> None:
    ranks, rank = group.size(), group.rank()
    experts, first = EXPERTS_PER_RANK * ranks, EXPERTS_PER_RANK * rank
    buffer = deep_ep.Buffer(group, num_nvl_bytes=1 << 30, explicitly_destroy=True, **backend)
    layer = DeepEPHTPrepareAndFinalize(buffer, ranks, dp_size=1, rank_expert_offset=first)
    for seed in range(3):
        batch = make_batch(seed, rank, 40 + rank, HIDDEN, TOPK, experts, device)
        weights, choices = batch.topk_weights, batch.topk_idx
        recv_x, _, about, recv_choices, recv_weights = layer.prepare(
            batch.x, weights, choices, experts, None, False, FUSED_MOE_UNQUANTIZED_CONFIG
        )
        own = (recv_choices >= first) & (recv_choices < first + EXPERTS_PER_RANK)
        assert int(about.expert_num_tokens.sum()) == int(own.sum())
        # Experts of other ranks come with weight 0.
        computed = weighted_outputs(recv_x, recv_choices, recv_weights, 0)
        output = torch.empty_like(batch.x)
        layer.finalize(output, computed, weights, choices, False, TopKWeightAndReduceNoOP())
        torch.testing.assert_close(output.float(), expected(batch), rtol=0.03, atol=0.05)
    buffer.destroy()


def run(group: dist.ProcessGroup, device: torch.device, backend: dict[str, Any]) -> None:
    assert has_deep_ep()
    assert not has_deep_ep_v2()
    if device.type == "cpu":
        ExpertTokensMetadata.make_from_list = staticmethod(counts_without_pinned_memory)
    low_latency(group, device, backend, use_fp8=False)
    low_latency(group, device, backend, use_fp8=True)
    high_throughput(group, device, backend)
