"""``Buffer``, with the API of DeepEP V1: its life.

Its calls are in ``low_latency_calls.py`` and ``high_throughput_calls.py``.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

import torch

from ep_runtime import _core, checks, environment
from ep_runtime.backends.device import DeviceBackend
from ep_runtime.backends.high_throughput import HighThroughput
from ep_runtime.backends.select import make_backend
from ep_runtime.build import build_info
from ep_runtime.call_plans import CallPlans
from ep_runtime.checks import require
from ep_runtime.events import EventHandle, EventOverlap
from ep_runtime.group import resolve_group
from ep_runtime.high_throughput_calls import HighThroughputCalls
from ep_runtime.launch import Launcher
from ep_runtime.low_latency_calls import LowLatencyCalls
from ep_runtime.memory import view_bytes

if TYPE_CHECKING:
    import torch.distributed as dist

_log = logging.getLogger(__name__)


class Buffer(LowLatencyCalls, HighThroughputCalls):
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
        self.runtime = None
        self._plans = None
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
        self._fitting = {}
        if isinstance(self.runtime, DeviceBackend):
            self._plans = CallPlans(self.runtime, self._launcher)
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

    def _release(self) -> None:
        backend, self.runtime = self.runtime, None
        self._plans = None
        calls, self._high_throughput = self._high_throughput, None
        self._launcher.forget()
        if calls is not None:
            calls.close()
        if backend is not None:
            backend.destroy()
