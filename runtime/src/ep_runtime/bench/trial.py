"""One shape of the operations on one rank: its buffer, its calls, and their check."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ep_runtime import Buffer
from ep_runtime.bench.correctness import (
    Mismatch,
    Received,
    check_combine,
    check_dispatch,
    make_expert_outputs,
)
from ep_runtime.bench.kinds import HookedOperations
from ep_runtime.bench.measure import Operations
from ep_runtime.bench.meeting import gather
from ep_runtime.bench.routing import Inputs, make_inputs

if TYPE_CHECKING:
    from collections.abc import Callable

    from ep_runtime.bench.options import Parameters
    from ep_runtime.bench.world import World

_CACHED_INPUTS = 32


class Trial:
    """Makes the buffer; collective, like all methods but those that say otherwise.

    ``queue_pairs``: of each rank, at least its local experts. NVSHMEM fixes them at a process's
    first buffer, so it must be given what the largest will need.
    """

    def __init__(
        self,
        parameters: Parameters,
        world: World,
        group: dist.ProcessGroup,
        device: torch.device,
        queue_pairs: int,
    ) -> None:
        p, ranks = parameters, world.size
        self.parameters, self.world, self.group, self.device = p, world, group, device
        size = Buffer.get_low_latency_rdma_size_hint(p.num_tokens, p.hidden, ranks, p.num_experts)
        self.buffer = Buffer(
            group,
            num_rdma_bytes=size,
            low_latency_mode=True,
            num_qps_per_rank=queue_pairs,
            explicitly_destroy=True,
            backend=p.backend,
            # Half the bound of the run, so that the runtime's error, which names the peer,
            # comes before the run's own.
            timeout_us=int(p.timeout_s * 1e6 / 2),
        )

    def inputs(self, routing: str) -> Inputs:
        """Give this rank's inputs, on its device. Not collective."""
        inputs = make_inputs(self.parameters, self.world.rank, routing)
        return Inputs(
            x=inputs.x.to(self.device),
            topk_idx=inputs.topk_idx.to(self.device),
            topk_weights=inputs.topk_weights.to(self.device),
        )

    def operations(self, inputs: Inputs, outputs: torch.Tensor) -> Operations:
        """Bind the calls to ``inputs`` and the experts' ``outputs``. Not collective."""
        return Operations(
            dispatch=lambda waits: self._dispatch(inputs, waits=waits)[:3],
            combine=lambda handle, waits: self._combine(inputs, outputs, handle[2], waits=waits),
            barrier=self.barrier,
        )

    def received(self, dispatched: tuple[Any, ...]) -> Received:
        """Name the parts of what a dispatch of ``operations`` gave. Not collective."""
        recv_x, count, handle = dispatched
        x, scales = recv_x if self.parameters.use_fp8 else (recv_x, None)
        return Received(x, scales, count, handle[0], handle[1])

    def hooked(self, inputs: Inputs, outputs: torch.Tensor) -> HookedOperations:
        """Bind the calls in two phases. Not collective."""

        def dispatch() -> tuple[Any, Callable[[], None]]:
            made = self._dispatch(inputs, hook=True)
            return made[2], made[4]

        def combine(handle: Any) -> Callable[[], None]:
            receive: Callable[[], None] = self._combine(inputs, outputs, handle, hook=True)[2]
            return receive

        return HookedOperations(dispatch, combine)

    def barrier(self) -> None:
        """Hold the host until all ranks are there."""
        dist.barrier(group=self.group)

    def _dispatch(
        self, inputs: Inputs, waits: torch.Tensor | None = None, hook: bool = False
    ) -> tuple[Any, ...]:
        p = self.parameters
        return self.buffer.low_latency_dispatch(
            inputs.x,
            inputs.topk_idx,
            p.num_tokens,
            p.num_experts,
            dispatch_wait_recv_cost_stats=waits,
            use_fp8=p.use_fp8,
            return_recv_hook=hook,
        )

    def _combine(
        self,
        inputs: Inputs,
        outputs: torch.Tensor,
        handle: Any,
        waits: torch.Tensor | None = None,
        hook: bool = False,
    ) -> tuple[Any, ...]:
        return self.buffer.low_latency_combine(
            outputs,
            inputs.topk_idx,
            inputs.topk_weights,
            handle,
            use_logfmt=self.parameters.use_logfmt,
            combine_wait_recv_cost_stats=waits,
            return_recv_hook=hook,
        )

    def check(self, routing: str) -> tuple[Mismatch | None, torch.Tensor, Received]:
        """Give the first mismatch of all ranks, this rank's expert outputs, what it received."""
        p, rank, size = self.parameters, self.world.rank, self.world.size
        inputs_of = lru_cache(maxsize=_CACHED_INPUTS)(partial(make_inputs, p, routing=routing))
        inputs = self.inputs(routing)
        dispatched = self._dispatch(inputs)[:3]
        received, handle = self.received(dispatched), dispatched[2]
        mismatch = self._first(check_dispatch(received, p, rank, size, inputs_of))
        if mismatch:
            return mismatch, received.x, received
        outputs = make_expert_outputs(received, p, rank, size, inputs_of).to(self.device)
        combined, _, _ = self._combine(inputs, outputs, handle)
        found = check_combine(combined, inputs_of(rank), rank, p.use_logfmt)
        return self._first(found), outputs, received

    def _first(self, mismatch: Mismatch | None) -> Mismatch | None:
        """Agree on the mismatch of the lowest rank that has one, so that all stop alike."""
        return next((found for found in gather(self.group, mismatch) if found), None)
