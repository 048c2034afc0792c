# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Assertions of DeepEP, by their condition: what the caller did that it does not take."""

from __future__ import annotations

from ..model import ERROR
from .message import add

_END = "The call raises and nothing was sent."


def _assertion(identity: str, title: str, fix: str, *conditions: str) -> None:
    add(__name__, identity, ERROR, title, conditions, _END, fix)


_assertion(
    "EPL401",
    "More tokens than the buffer was made for",
    "Raise num_max_dispatch_tokens_per_rank on all ranks alike (engines: the largest batch of"
    " decoding,"
    " speculative tokens included); NVSHMEM_QP_DEPTH must follow.",
    "x.size(0) <= num_max_dispatch_tokens_per_rank",
    "topk_weights.size(0) <= num_max_dispatch_tokens_per_rank",
)
_assertion(
    "EPL402",
    "The hidden size or the type of the rows is not served",
    "Rows must be BF16, contiguous, with a hidden size that is a multiple of 128 (512 with UE8M0"
    " scales)"
    " and compiled in.",
    "Unsupported hidden",
    "x.scalar_type() == torch::kBFloat16",
    "x.size(1) % 128 == 0",
    "hidden % 512 == 0",
)
_assertion(
    "EPL403",
    "The number of ranks is not served",
    "Use whole hosts of 8 GPUs: 2, 4, 8 or a multiple of 8 ranks as the version at hand allows.",
    "Unsupported number of EP ranks",
    "Unsupported RDMA ranks",
    "Invalid number of NVL peers",
    "num_ranks < NUM_MAX_NVL_PEERS or num_ranks % NUM_MAX_NVL_PEERS == 0",
    "num_ranks > NUM_MAX_NVL_PEERS or low_latency_mode",
    "0 <= rank and rank < num_ranks and",
    "0 < get_num_rdma_ranks() and get_num_rdma_ranks() <= NUM_MAX_RDMA_PEERS",
)
_assertion(
    "EPL404",
    "The buffer is too small for the call",
    "Size it with get_low_latency_rdma_size_hint for the same tokens, hidden size and experts,"
    " or with"
    " the Config's own hints.",
    "layout.total_bytes <= num_rdma_bytes",
    "num_ranks * (num_ranks + num_local_experts) * sizeof(int) <= num_nvl_bytes",
    "num_nvl_bytes % NUM_BUFFER_ALIGNMENT_BYTES == 0",
    "num_rdma_bytes % NUM_BUFFER_ALIGNMENT_BYTES == 0",
)
_assertion(
    "EPL405",
    "Low-latency calls on a buffer of normal mode",
    "Create the buffer with low_latency_mode=True.",
    "'low_latency_mode'",
)
_assertion(
    "EPL406",
    "The number of experts does not divide by the number of ranks",
    "Choose a number of experts that every rank holds equally many of.",
    "num_experts % num_ranks == 0",
    "num_tokens_per_expert->size(0) % num_ranks == 0",
)
_assertion(
    "EPL407",
    "A hook and an event were asked for at once",
    "Pass either async_finish or return_recv_hook.",
    "not(async and return_recv_hook)",
)
_assertion(
    "EPL408",
    "The expert indices have the wrong type or shape",
    "topk_idx must be two-dimensional, contiguous, int64 (or what TOPK_IDX_BITS says).",
    "topk_idx.scalar_type() == c10::CppTypeToScalarType<topk_idx_t>::value",
    "topk_idx.dim() == 2 and topk_idx.is_contiguous()",
    "topk_idx.dim() == 2",
)
_assertion(
    "EPL409",
    "The number of tokens does not suit TMA",
    "Choose num_max_dispatch_tokens_per_rank so that its product with the ranks is a multiple of"
    " 4.",
    "TMA requires the number of tokens to be multiple of 4",
)
_assertion(
    "EPL410",
    "Combine was given rows of another shape than dispatch gave",
    "Give the experts' outputs as BF16 [local experts, ranks * tokens, hidden], as dispatch laid"
    " them out.",
    "x.size(1) == num_ranks * num_max_dispatch_tokens_per_rank",
    "x.size(0) == num_experts / num_ranks",
    "x.dim() == 3 and x.is_contiguous()",
)
_assertion(
    "EPL411",
    "zero_copy and LogFMT were asked for at once",
    "Choose one of the two.",
    "not(zero_copy and use_logfmt)",
)
_assertion(
    "EPL412",
    "Chunk sizes of normal mode do not suit the number of ranks",
    "Take Buffer.get_dispatch_config and get_combine_config for this number of ranks; larger"
    " groups need"
    " larger NVL receive chunks (560, 720).",
    "num_max_nvl_chunked_recv_tokens % num_rdma_ranks == 0",
    "num_max_nvl_chunked_send_tokens <= ... num_max_nvl_chunked_recv_tokens / num_rdma_ranks",
    "num_max_nvl_chunked_recv_tokens / num_rdma_ranks > std::max(",
    "channel_prefix_matrix.size(1) == num_channels",
)
_assertion(
    "EPL413",
    "A buffer was destroyed or synchronised twice",
    "Create one buffer per group, and destroy it once on all ranks.",
    "'not destroyed'",
    "'not is_available()'",
)
_assertion(
    "EPL414",
    "Ranks are masked without shrink mode",
    "Create the buffer with enable_shrink=True.",
    "Shrink mode must be enabled",
)
_assertion(
    "EPL415",
    "UE8M0 scales without rounding",
    "Pass round_scale=True with use_ue8m0.",
    "UE8M0 SF requires `round_scale=True`",
)
_assertion(
    "EPL416",
    "More experts are chosen per token than the kernels serve",
    "Lower num_topk, or use a version that serves it.",
    "num_topk <= kNumMaxTopK",
    "num_topk <= 32",
    "kNumMaxTopK + 1 <= num_warp_groups",
)
_assertion(
    "EPL417",
    "The kernel's shared memory does not fit this GPU",
    "The GPU has less shared memory than the build expects: rebuild for its architecture.",
    "cudaFuncAttributeMaxDynamicSharedMemorySize, smem_size) == cudaSuccess",
)
