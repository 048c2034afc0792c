"""The low-latency calls of ``Buffer``, with the API of DeepEP V1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ep_runtime import checks
from ep_runtime.backends.base import Backend, CombineRequest, DispatchRequest
from ep_runtime.checks import require

if TYPE_CHECKING:
    from ep_runtime import _core
    from ep_runtime.call_plans import CallPlans
    from ep_runtime.environment import QueuePairs
    from ep_runtime.events import EventOverlap
    from ep_runtime.launch import Launcher

Handle = tuple[torch.Tensor, torch.Tensor, int, int, int]


def _given(*tensors: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    return tuple(tensor for tensor in tensors if tensor is not None)


class LowLatencyCalls:
    """Part of ``Buffer``: dispatch and combine of few tokens, their memory and masks."""

    group_size: int
    num_rdma_bytes: int
    low_latency_mode: bool
    enable_shrink: bool
    runtime: Backend | None
    _launcher: Launcher
    _plans: CallPlans | None
    _queue_pairs: QueuePairs
    _has_rdma_peers: bool
    _timeout_us: int
    _num_sms: int
    # Layouts by shape, of those that this buffer has memory and queue pairs for.
    _fitting: dict[tuple[int, int, int], _core.LowLatencyLayout]

    def clean_low_latency_buffer(
        self, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int
    ) -> None:
        """Forget all that arrived; operations not received yet are dropped. Collective."""
        backend = self._backend()
        layout = checks.layout_of(
            num_max_dispatch_tokens_per_rank, hidden, self.group_size, num_experts
        )
        checks.check_memory(layout, self.num_rdma_bytes)
        self._launcher.forget()
        backend.clean(num_max_dispatch_tokens_per_rank, hidden, num_experts, self._timeout_us)

    def low_latency_dispatch(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: torch.Tensor | None = None,
        dispatch_wait_recv_cost_stats: torch.Tensor | None = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        *,
        timeout_us: int | None = None,
        num_sms: int | None = None,
    ) -> tuple[
        torch.Tensor | tuple[torch.Tensor, torch.Tensor], torch.Tensor, Handle, EventOverlap, Any
    ]:
        """Send each token to the ranks of its experts. Collective; at most two results alive.

        With T tokens here, H channels, K selections, R ranks, E experts, L = E / R and
        M = ``num_max_dispatch_tokens_per_rank`` (the same on all ranks):

        Arguments:
            x: bfloat16 [T, H], T <= M, H a multiple of 128.
            topk_idx: int64 [T, K], K <= 32; -1 selects nothing, a repeated expert gets two rows.
            num_max_dispatch_tokens_per_rank: M.
            num_experts: E, a multiple of R.
            cumulative_local_expert_recv_stats: int32 [L], to which rows received are added.
            dispatch_wait_recv_cost_stats: int64 [R], to which waits for each rank are added (GPU
                clock cycles; nanoseconds with the reference backend).
            use_fp8: send float8_e4m3fn with one scale per 128 channels instead of bfloat16.
            round_scale: round scales up to powers of two.
            use_ue8m0: give scales as exponent bytes, four to an int32 (H a multiple of 512).
            async_finish: don't let the current stream wait; the event is to be waited for.
            return_recv_hook: only send; the hook, called once, receives.
            timeout_us: for this call, in place of the buffer's.
            num_sms: the same.

        Returns ``(recv_x, recv_count, handle, event, hook)``. ``recv_x`` is bfloat16 [L, R*M, H],
        or ``(float8_e4m3fn [L, R*M, H], scales)`` with scales float32 [L, R*M, H/128] or int32
        [L, R*M, H/512], their rows adjacent in memory. ``recv_count`` is int32 [L]; only so many
        rows of an expert are defined, ordered by source rank and token. ``handle`` is
        ``(src_info int32 [L, R*M], layout_range int64 [L, R] begin << 32 | count, M, H, E)``.

        """
        plan = (
            "dispatch",
            num_max_dispatch_tokens_per_rank,
            num_experts,
            use_fp8,
            round_scale,
            use_ue8m0,
            timeout_us,
            num_sms,
        )
        plans = None if async_finish else self._plans
        if plans is not None:
            done = plans.dispatch(
                plan,
                return_recv_hook,
                x,
                topk_idx,
                cumulative_local_expert_recv_stats,
                dispatch_wait_recv_cost_stats,
            )
            if done is not None:
                return done
        backend = self._backend()
        checks.check_modes(async_finish, return_recv_hook)
        checks.check_rows(x)
        checks.check_device("x", x, backend.tensor_device)
        hidden = x.shape[1]
        layout = self._layout(num_max_dispatch_tokens_per_rank, hidden, num_experts)
        checks.check_dispatch(
            x=x,
            topk_idx=topk_idx,
            layout=layout,
            cumulative_stats=cumulative_local_expert_recv_stats,
            wait_stats=dispatch_wait_recv_cost_stats,
            use_fp8=use_fp8,
            round_scale=round_scale,
            use_ue8m0=use_ue8m0,
        )
        request = DispatchRequest(
            x=x,
            topk_idx=topk_idx,
            max_tokens_per_rank=num_max_dispatch_tokens_per_rank,
            num_experts=num_experts,
            cumulative_stats=cumulative_local_expert_recv_stats,
            wait_stats=dispatch_wait_recv_cost_stats,
            use_fp8=use_fp8,
            round_scale=round_scale,
            use_ue8m0=use_ue8m0,
            timeout_us=self._timeout(timeout_us),
            num_sms=self._sms(num_sms),
        )
        operation = backend.dispatch(request)
        result = operation.result
        event, hook = self._launcher.run(
            operation,
            "low_latency_dispatch",
            x.device,
            lambda: _given(
                x,
                topk_idx,
                *result,
                cumulative_local_expert_recv_stats,
                dispatch_wait_recv_cost_stats,
            ),
            async_finish=async_finish,
            return_recv_hook=return_recv_hook,
        )
        if plans is not None:
            plans.remember_dispatch(plan, request)
        handle = (
            result.src_info,
            result.layout_range,
            num_max_dispatch_tokens_per_rank,
            hidden,
            num_experts,
        )
        recv_x = result.recv_x if result.scales is None else (result.recv_x, result.scales)
        return recv_x, result.recv_count, handle, event, hook

    def low_latency_combine(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        handle: Handle,
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: torch.Tensor | None = None,
        combine_wait_recv_cost_stats: torch.Tensor | None = None,
        *,
        timeout_us: int | None = None,
        num_sms: int | None = None,
    ) -> tuple[torch.Tensor, EventOverlap, Any]:
        """Bring the experts' rows back and add them up per token. Collective.

        Letters as in ``low_latency_dispatch``.

        Arguments:
            x: bfloat16 [L, R*M, H], rows where the dispatch put their tokens.
            topk_idx: int64 [T, K] as dispatched; an entry set to -1 since is left out.
            topk_weights: float32 [T, K].
            handle: as returned by the dispatch.
            use_logfmt: send 10 bits a channel where the values allow it.
            zero_copy: the rows are in ``get_next_low_latency_combine_buffer(handle)`` already;
                ``x`` is only checked.
            async_finish: as for the dispatch.
            return_recv_hook: as for the dispatch.
            out: bfloat16 [T, H] to write to, else a new tensor.
            combine_wait_recv_cost_stats: int64 [R], as for the dispatch.
            timeout_us: for this call, in place of the buffer's.
            num_sms: the same.

        Returns ``(combined, event, hook)``, ``combined`` bfloat16 [T, H]: the weighted sum over
        each token's selections, added in float32 in their order and rounded once.

        """
        src_info, layout_range, max_tokens, hidden, num_experts = checks.unpack_handle(handle)
        plan = ("combine", max_tokens, hidden, num_experts, use_logfmt, timeout_us, num_sms)
        plans = None if async_finish or zero_copy else self._plans
        if plans is not None:
            done = plans.combine(
                plan,
                return_recv_hook,
                x,
                topk_idx,
                topk_weights,
                src_info,
                layout_range,
                out,
                combine_wait_recv_cost_stats,
            )
            if done is not None:
                return done
        backend = self._backend()
        checks.check_modes(async_finish, return_recv_hook)
        checks.check_device("x", x, backend.tensor_device)
        layout = self._layout(max_tokens, hidden, num_experts)
        checks.check_combine(
            x=x,
            topk_idx=topk_idx,
            topk_weights=topk_weights,
            src_info=src_info,
            layout_range=layout_range,
            layout=layout,
            out=out,
            wait_stats=combine_wait_recv_cost_stats,
            use_logfmt=use_logfmt,
            zero_copy=zero_copy,
        )
        combined = x.new_empty((topk_idx.shape[0], hidden)) if out is None else out
        request = CombineRequest(
            x=x,
            topk_idx=topk_idx,
            topk_weights=topk_weights,
            src_info=src_info,
            layout_range=layout_range,
            max_tokens_per_rank=max_tokens,
            num_experts=num_experts,
            use_logfmt=use_logfmt,
            zero_copy=zero_copy,
            out=combined,
            wait_stats=combine_wait_recv_cost_stats,
            timeout_us=self._timeout(timeout_us),
            num_sms=self._sms(num_sms),
        )
        operation = backend.combine(request)
        event, hook = self._launcher.run(
            operation,
            "low_latency_combine",
            x.device,
            lambda: _given(
                x,
                topk_idx,
                topk_weights,
                src_info,
                layout_range,
                combined,
                combine_wait_recv_cost_stats,
            ),
            async_finish=async_finish,
            return_recv_hook=return_recv_hook,
        )
        if plans is not None:
            plans.remember_combine(plan, request)
        return combined, event, hook

    def get_next_low_latency_combine_buffer(self, handle: Handle) -> torch.Tensor:
        """Give the memory that the next ``zero_copy`` combine of ``handle`` reads.

        bfloat16 [L, R*M, H], rows H + H/64 elements apart. No other operation may come between.
        """
        backend = self._backend()
        _, _, max_tokens, hidden, num_experts = checks.unpack_handle(handle)
        return backend.next_combine_buffer(max_tokens, hidden, num_experts)

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Mask or unmask a rank, here only: nothing is sent to it or awaited from it."""
        backend = self._shrinkable()
        require(
            0 <= rank_to_mask < self.group_size,
            f"rank_to_mask must be from 0 to {self.group_size - 1}, got {rank_to_mask}.",
        )
        backend.set_mask(rank_to_mask, mask)

    def low_latency_query_mask_buffer(self, mask_status: torch.Tensor) -> None:
        """Write 1 for each masked rank and 0 for the others into ``mask_status`` int32 [R]."""
        backend = self._shrinkable()
        require(
            mask_status.numel() == self.group_size and mask_status.dtype == torch.int32,
            f"mask_status must be torch.int32 with {self.group_size} elements, got "
            f"{mask_status.dtype} with {mask_status.numel()}.",
        )
        require(mask_status.is_contiguous(), "mask_status must be contiguous.")
        checks.check_device("mask_status", mask_status, backend.tensor_device)
        backend.query_mask(mask_status)

    def low_latency_clean_mask_buffer(self) -> None:
        """Unmask all ranks."""
        self._shrinkable().clear_mask()

    def _backend(self) -> Backend:
        if self.runtime is not None:
            return self.runtime
        require(
            self.low_latency_mode,
            "low_latency_mode is False, but only buffers made with True can do this.",
        )
        raise RuntimeError("this buffer was destroyed.")

    def _shrinkable(self) -> Backend:
        require(self.enable_shrink, "Shrink mode must be enabled: enable_shrink is False.")
        return self._backend()

    def _layout(self, max_tokens: int, hidden: int, num_experts: int) -> _core.LowLatencyLayout:
        shape = (max_tokens, hidden, num_experts)
        layout = self._fitting.get(shape)
        if layout is None:
            layout = checks.layout_of(max_tokens, hidden, self.group_size, num_experts)
            checks.check_memory(layout, self.num_rdma_bytes)
            self._queue_pairs.check(layout, rdma_peers=self._has_rdma_peers)
            self._fitting[shape] = layout
        return layout

    def _timeout(self, timeout_us: int | None) -> int:
        if timeout_us is None:
            return self._timeout_us
        require(timeout_us > 0, f"timeout_us must be positive, got {timeout_us}.")
        return timeout_us

    def _sms(self, num_sms: int | None) -> int:
        if num_sms is None:
            return self._num_sms
        require(num_sms >= 0, f"num_sms must not be negative, got {num_sms}.")
        return num_sms
