"""Checks of the low-latency calls' arguments, in one sentence each.

They raise RuntimeError where callers of DeepEP get one from its compiled part.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from ep_runtime import _core


def require(condition: bool, message: str) -> None:
    """Raise RuntimeError with ``message`` unless ``condition``."""
    if not condition:
        raise RuntimeError(message)


@lru_cache(maxsize=64)
def layout_of(
    num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
) -> _core.LowLatencyLayout:
    """Lay out symmetric memory; RuntimeError for shapes that have no layout."""
    try:
        return _core.low_latency_layout(
            num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts
        )
    except ValueError as error:
        raise RuntimeError(str(error)) from None


def check_memory(layout: _core.LowLatencyLayout, num_rdma_bytes: int) -> None:
    """Refuse shapes that need more symmetric memory than the buffer has."""
    if layout.total_bytes > num_rdma_bytes:
        raise RuntimeError(
            f"num_rdma_bytes is {num_rdma_bytes}, but num_max_dispatch_tokens_per_rank="
            f"{layout.max_tokens}, hidden={layout.hidden}, num_experts={layout.num_experts} on "
            f"{layout.num_ranks} ranks need {layout.total_bytes} bytes."
        )


def check_tensor(
    name: str,
    tensor: torch.Tensor,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    device: torch.device,
) -> None:
    """Refuse another dtype, shape, layout or device."""
    # One test in the common case: these run at every call, ahead of kernels of microseconds.
    if (
        tensor.dtype == dtype
        and tensor.shape == shape
        and tensor.is_contiguous()
        and tensor.device == device
    ):
        return
    require(tensor.dtype == dtype, f"{name} must be {dtype}, got {tensor.dtype}.")
    got = list(tensor.shape)
    require(got == list(shape), f"{name} must have shape {list(shape)}, got {got}.")
    require(tensor.is_contiguous(), f"{name} must be contiguous, got strides {tensor.stride()}.")
    require(tensor.device == device, f"{name} must be on {device}, got {tensor.device}.")


def check_modes(async_finish: bool, return_recv_hook: bool) -> None:
    """Refuse both ways of overlapping at once."""
    if async_finish and return_recv_hook:
        raise RuntimeError("async_finish and return_recv_hook exclude each other, got both.")


def _check_topk(
    topk_idx: torch.Tensor, tokens: int, layout: _core.LowLatencyLayout, device: torch.device
) -> None:
    """Require int64 [tokens, 1 ... topk_capacity] on ``device``."""
    shape = topk_idx.shape
    if len(shape) != 2 or shape[0] != tokens or not 1 <= shape[1] <= layout.topk_capacity:
        require(len(shape) == 2, f"topk_idx must have 2 dimensions, got {len(shape)}.")
        require(
            shape[0] == tokens,
            f"topk_idx must have a row for each of the {tokens} tokens, got {shape[0]}.",
        )
        raise RuntimeError(
            f"topk_idx must have 1 to min({_core.MAX_TOPK}, num_experts) = "
            f"{layout.topk_capacity} columns, got {shape[1]}."
        )
    if tokens > layout.max_tokens:
        raise RuntimeError(
            f"num_max_dispatch_tokens_per_rank is {layout.max_tokens}, but there are {tokens} "
            "tokens."
        )
    check_tensor("topk_idx", topk_idx, torch.int64, shape, device)


def check_dispatch(
    *,
    x: torch.Tensor,
    topk_idx: torch.Tensor,
    layout: _core.LowLatencyLayout,
    cumulative_stats: torch.Tensor | None,
    wait_stats: torch.Tensor | None,
    use_fp8: bool,
    round_scale: bool,
    use_ue8m0: bool,
) -> None:
    """Check a dispatch against the layout that its ``x``, ranks and experts gave."""
    shape, device = x.shape, x.device
    if x.dtype != torch.bfloat16 or not x.is_contiguous():
        check_tensor("x", x, torch.bfloat16, shape, device)
    _check_topk(topk_idx, shape[0], layout, device)
    if cumulative_stats is not None:
        name = "cumulative_local_expert_recv_stats"
        check_tensor(name, cumulative_stats, torch.int32, (layout.local_experts,), device)
    if wait_stats is not None:
        name = "dispatch_wait_recv_cost_stats"
        check_tensor(name, wait_stats, torch.int64, (layout.num_ranks,), device)
    if use_ue8m0:
        hidden = shape[1]
        require(use_fp8, "use_ue8m0 needs use_fp8=True, got False.")
        require(round_scale, "use_ue8m0 needs round_scale=True, got False.")
        require(hidden % 512 == 0, f"use_ue8m0 needs hidden % 512 == 0, got hidden {hidden}.")


def check_combine(
    *,
    x: torch.Tensor,
    topk_idx: torch.Tensor,
    topk_weights: torch.Tensor,
    src_info: torch.Tensor,
    layout_range: torch.Tensor,
    layout: _core.LowLatencyLayout,
    out: torch.Tensor | None,
    wait_stats: torch.Tensor | None,
    use_logfmt: bool,
    zero_copy: bool,
) -> None:
    """Check a combine against the layout of its handle."""
    if x.dtype in (torch.float8_e4m3fn, torch.uint8):
        raise RuntimeError(
            f"x of low_latency_combine must be torch.bfloat16, got {x.dtype}: FP8 rows of a "
            "dispatch must be turned back first."
        )
    device = x.device
    local, ranks, hidden = layout.local_experts, layout.num_ranks, layout.hidden
    rows = ranks * layout.max_tokens
    check_tensor("x", x, torch.bfloat16, (local, rows, hidden), device)
    if topk_weights.dim() != 2:
        raise RuntimeError(f"topk_weights must have 2 dimensions, got {topk_weights.dim()}.")
    tokens = topk_weights.shape[0]
    _check_topk(topk_idx, tokens, layout, device)
    check_tensor("topk_weights", topk_weights, torch.float32, topk_idx.shape, device)
    check_tensor("src_info of handle", src_info, torch.int32, (local, rows), device)
    check_tensor("layout_range of handle", layout_range, torch.int64, (local, ranks), device)
    if out is not None:
        check_tensor("out", out, torch.bfloat16, (tokens, hidden), device)
    if wait_stats is not None:
        check_tensor("combine_wait_recv_cost_stats", wait_stats, torch.int64, (ranks,), device)
    if zero_copy and use_logfmt:
        raise RuntimeError("zero_copy and use_logfmt exclude each other, got both.")


def check_rows(x: torch.Tensor) -> None:
    """Require the two dimensions that the layout is made from."""
    if x.dim() != 2:
        raise RuntimeError(f"x must have 2 dimensions, got {x.dim()}.")


def check_device(name: str, tensor: torch.Tensor, device: torch.device | None) -> None:
    """Require a tensor where the backend can read it; ``device`` None: on the CPU or any GPU.

    A kernel that is given the address of another device's memory ends the CUDA context.
    """
    if tensor.device == device:
        return
    if device is not None:
        raise RuntimeError(
            f"{name} must be on {device}, which is this buffer's GPU, got {tensor.device}."
        )
    if tensor.device.type not in ("cpu", "cuda"):
        raise RuntimeError(f"{name} must be on the CPU or a GPU, got {tensor.device}.")


def unpack_handle(handle: Any) -> tuple[torch.Tensor, torch.Tensor, int, int, int]:
    """Take ``(src_info, layout_range, tokens per rank, hidden, experts)`` as dispatched."""
    require(
        isinstance(handle, tuple) and len(handle) == 5,
        "handle must be the 5-tuple that low_latency_dispatch returned.",
    )
    src_info, layout_range, max_tokens, hidden, num_experts = handle
    return src_info, layout_range, max_tokens, hidden, num_experts


def check_sizes(
    num_nvl_bytes: int, num_rdma_bytes: int, low_latency_mode: bool, num_ranks: int
) -> None:
    """Check a constructor's byte counts."""
    for name, value in (("num_nvl_bytes", num_nvl_bytes), ("num_rdma_bytes", num_rdma_bytes)):
        require(
            value >= 0 and value % 128 == 0,
            f"{name} must be a multiple of 128 and not negative, got {value}.",
        )
    require(
        num_rdma_bytes == 0 or low_latency_mode or num_ranks > 8,
        f"num_rdma_bytes={num_rdma_bytes} needs low_latency_mode=True or more than 8 ranks, got "
        f"{num_ranks} ranks.",
    )
