"""``Buffer``, with the API of DeepEP V1: its life, and the low-latency dispatch and combine.

The high-throughput calls are in ``high_throughput_calls.py``.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

import torch

from ep_runtime import _core, checks, environment
from ep_runtime.backends.base import Backend, CombineRequest, DispatchRequest
from ep_runtime.backends.high_throughput import HighThroughput
from ep_runtime.backends.select import make_backend
from ep_runtime.build import build_info
from ep_runtime.checks import require
from ep_runtime.events import EventHandle, EventOverlap
from ep_runtime.group import resolve_group
from ep_runtime.high_throughput_calls import HighThroughputCalls
from ep_runtime.launch import Launcher
from ep_runtime.memory import view_bytes

if TYPE_CHECKING:
    import torch.distributed as dist

_log = logging.getLogger(__name__)

Handle = tuple[torch.Tensor, torch.Tensor, int, int, int]


def _given(*tensors: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    return tuple(tensor for tensor in tensors if tensor is not None)


class Buffer(HighThroughputCalls):
    """Communication among the ranks of one expert-parallel group. Creation is collective.

    Arguments:
        group: the ranks, as a torch process group of any backend. Only objects are gathered on it.
        num_nvl_bytes: memory of the high-throughput kernels; checked, not allocated.
        num_rdma_bytes: symmetric memory per rank, a multiple of 128, the same on all ranks; see
            ``get_low_latency_rdma_size_hint``.
        low_latency_mode: needed by every ``low_latency_*`` call.
        num_qps_per_rank: RDMA queue pairs to each rank; one per local expert is right.
        allow_nvlink_for_low_latency_mode, allow_mnnvl: what NVSHMEM may use.
        explicitly_destroy: the caller will call ``destroy()``; else it is called when the object
            is collected.
        enable_shrink: allow masking of ranks; a rank that is gone is then masked, not an error.
        comm: an mpi4py communicator in place of ``group`` (not with the reference backend).
        use_fabric: accepted for callers of older versions; the backend chooses its handles.
        rank, group_size: in place of a group, the default process group, started if need be.
        backend: "auto", "reference", "peer" or "nvshmem"; "auto" obeys EP_RUNTIME_BACKEND, and
            else takes "peer" for the ranks of one host, "nvshmem" for those of several.
        timeout_us: bound on every wait for a peer in microseconds; else EP_RUNTIME_TIMEOUT_US,
            else 100 seconds.
        num_sms: SMs that the kernels may use; 0: all of this rank's share. Else
            EP_RUNTIME_NUM_SMS.

    Raises ValueError for a missing group or a setting that isn't one, RuntimeError for sizes.

    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool = True,
        allow_mnnvl: bool = False,
        explicitly_destroy: bool = False,
        enable_shrink: bool = False,
        comm: Any = None,
        *,
        use_fabric: bool = False,
        rank: int | None = None,
        group_size: int | None = None,
        backend: str = "auto",
        timeout_us: int | None = None,
        num_sms: int | None = None,
    ) -> None:
        self.runtime: Backend | None = None
        self._high_throughput: HighThroughput | None = None
        self.explicitly_destroy = explicitly_destroy
        self._timeout_us = environment.integer_setting(
            "timeout_us",
            timeout_us,
            environment.TIMEOUT_VARIABLE,
            default=environment.DEFAULT_TIMEOUT_US,
            least=1,
        )
        self._num_sms = environment.integer_setting(
            "num_sms", num_sms, environment.NUM_SMS_VARIABLE, default=0, least=0
        )
        ranks = resolve_group(group, comm, rank, group_size)
        self.rank = ranks.rank
        self.group_size = ranks.size
        self.group = ranks.process_group
        checks.check_sizes(num_nvl_bytes, num_rdma_bytes, low_latency_mode, self.group_size)
        self.num_nvl_bytes = num_nvl_bytes
        self.num_rdma_bytes = num_rdma_bytes
        self.low_latency_mode = low_latency_mode
        self.enable_shrink = enable_shrink
        self._launcher = Launcher()
        self._environment_changes: tuple[environment.EnvironmentChange, ...] = ()
        # Set last: a buffer that could not be made has nothing to destroy.
        high_throughput = HighThroughput(ranks, self._timeout_us)
        if not low_latency_mode:
            self._high_throughput = high_throughput
            return
        assert num_qps_per_rank > 0, f"num_qps_per_rank must be positive, got {num_qps_per_rank}."
        decided = environment.apply_nvshmem_environment(
            num_qps_per_rank=num_qps_per_rank,
            allow_nvlink=allow_nvlink_for_low_latency_mode,
            allow_mnnvl=allow_mnnvl,
        )
        self.nvshmem_qp_depth, self._environment_changes = decided.depth, decided.changes
        self._queue_pairs = environment.QueuePairs(num_qps_per_rank, decided.depth)
        self.runtime = make_backend(
            ranks,
            num_rdma_bytes,
            backend=backend,
            enable_shrink=enable_shrink,
            num_sms=self._num_sms,
            num_queue_pairs=num_qps_per_rank,
            contradictions=decided.contradictions,
        )
        self._has_rdma_peers = "rdma" in self.runtime.transport_report()["peers"]
        # Layouts by shape, of those that this buffer has memory and queue pairs for.
        self._fitting: dict[tuple[int, int, int], _core.LowLatencyLayout] = {}
        self._high_throughput = high_throughput

    def __del__(self) -> None:
        if getattr(self, "_high_throughput", None) is None or sys.is_finalizing():
            return
        if self.explicitly_destroy:
            _log.warning("destroy() was not called before a Buffer was collected: memory may leak.")
            return
        self._release()

    def destroy(self) -> None:
        """Free all memory; the buffer can't be used afterwards.

        Raises AssertionError unless made with ``explicitly_destroy=True``, RuntimeError the
        second time.
        """
        assert self.explicitly_destroy, "`explicitly_destroy` flag must be set"
        require(self._high_throughput is not None, "destroy: this buffer was destroyed before.")
        self._release()

    @staticmethod
    def is_sm90_compiled() -> bool:
        """Whether this build holds kernels for GPUs of compute capability 9.0."""
        return any(
            arch.split("-")[0] in ("90", "90a") for arch in build_info()["cuda_architectures"]
        )

    @staticmethod
    def capture() -> EventOverlap:
        """Record an event on the current stream."""
        return EventOverlap(EventHandle())

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """Symmetric bytes per rank for these shapes; ``layout.hpp`` states the formula.

        Raises ValueError naming the argument that is out of range.
        """
        return _core.low_latency_layout(
            num_max_dispatch_tokens_per_rank, hidden, num_ranks, num_experts
        ).total_bytes

    def get_comm_stream(self) -> torch.cuda.Stream:
        """Give the stream of operations without a hook. RuntimeError without a GPU."""
        require(
            torch.cuda.is_available(),
            "get_comm_stream: torch finds no usable GPU, and without one there are no streams.",
        )
        return self._launcher.comm_stream(torch.device("cuda", torch.cuda.current_device()))

    def get_local_buffer_tensor(
        self,
        dtype: torch.dtype,
        size: torch.Size | None = None,
        offset: int = 0,
        use_rdma_buffer: bool = False,
    ) -> torch.Tensor:
        """View this rank's symmetric memory from byte ``offset`` on, 1-D or as ``size``.

        Filling all of it with zero, between operations and on all ranks, means that nothing has
        arrived. Raises RuntimeError for ``use_rdma_buffer=False``: there is no other memory.
        """
        require(
            use_rdma_buffer,
            "get_local_buffer_tensor needs use_rdma_buffer=True: num_nvl_bytes is not allocated.",
        )
        return view_bytes(self._backend().local_buffer(), dtype, size, offset)

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
        operation = backend.dispatch(
            DispatchRequest(
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
        )
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
        backend = self._backend()
        checks.check_modes(async_finish, return_recv_hook)
        checks.check_device("x", x, backend.tensor_device)
        src_info, layout_range, max_tokens, hidden, num_experts = checks.unpack_handle(handle)
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
        operation = backend.combine(
            CombineRequest(
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
        )
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

    def check(self) -> None:
        """Raise the error of an earlier asynchronous operation, if there was one; never waits."""
        self._backend().check()

    def transport_report(self) -> dict[str, Any]:
        """Tell what really carries the data, ready for JSON.

        Keys: ``backend`` and ``peers``, per rank "self", "same-gpu", "peer-memory", "gloo" ..., of
        the low-latency calls (of the high-throughput ones without low-latency mode); ``calls``, by
        which backend each call runs, None for those that this buffer can't do; ``num_sms``;
        ``nic_handler`` (None without RDMA); ``environment``, the NVSHMEM variables that this
        buffer changed, each ``{"before": ..., "after": ...}``.
        """
        calls = self._calls().transport_report()
        source = self._backend().transport_report() if self.low_latency_mode else calls
        report = dict(source)
        low_latency = self.runtime.name if self.runtime is not None else None
        report["calls"] = {
            "low_latency_dispatch": low_latency,
            "low_latency_combine": low_latency,
            "dispatch": calls["backend"],
            "combine": calls["backend"],
        }
        report["environment"] = {
            change.name: {"before": change.before, "after": change.after}
            for change in self._environment_changes
        }
        return report

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

    def _release(self) -> None:
        backend, self.runtime = self.runtime, None
        calls, self._high_throughput = self._high_throughput, None
        self._launcher.forget()
        if calls is not None:
            calls.close()
        if backend is not None:
            backend.destroy()
