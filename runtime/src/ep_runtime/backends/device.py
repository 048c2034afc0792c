"""What the backends with CUDA kernels share: launching the phases, masks, problems.

How the memory of other ranks is reached is the matter of a subclass, which provides ``engine``.
Protocol and kernels: docs/kernels.md.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from ep_runtime import _core
from ep_runtime.backends.agreement import raise_together
from ep_runtime.backends.base import (
    SEND_AND_RECEIVE,
    CombineRequest,
    DispatchRequest,
    DispatchResult,
)
from ep_runtime.backends.combine_buffer import CombineBuffer
from ep_runtime.errors import EPError, EPTimeoutError
from ep_runtime.launch import current_stream
from ep_runtime.new_tensors import TensorSpec, tensor_maker

if TYPE_CHECKING:
    from collections.abc import Callable

    from ep_runtime.group import RankGroup

_TIMEOUT, _EXPERT_OUT_OF_RANGE, _TOO_MANY_ROWS = 1, 2, 3
_PHASES = {
    1: "dispatch send",
    2: "dispatch receive",
    3: "combine send",
    4: "combine receive",
    5: "clean",
}


def _pointer(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def dispatch_outputs(
    local: int, ranks: int, max_tokens: int, hidden: int, use_fp8: bool, use_ue8m0: bool
) -> tuple[TensorSpec, ...]:
    """Specify a dispatch's outputs: counts, source info, layout, rows and, with FP8, scales.

    What the handle keeps until the combine has memory of its own: rows may end before it.
    """
    rows = ranks * max_tokens
    row_dtype = torch.float8_e4m3fn if use_fp8 else torch.bfloat16
    # For the combine: each row's source rank and place in its top-k row, then where the rows of
    # this rank's own tokens are (csrc/cuda/combine_in_place.cuh).
    own_places = 2 + max_tokens * min(_core.MAX_TOPK, local * ranks)
    places_bytes = (local * rows + own_places) * torch.int32.itemsize
    specs = [
        TensorSpec.contiguous(0, (local,), torch.int32),
        TensorSpec.contiguous(0, (local, rows), torch.int32, room_behind=places_bytes),
        TensorSpec.contiguous(0, (local, ranks), torch.int64),
        TensorSpec.contiguous(1, (local, rows, hidden), row_dtype),
    ]
    if use_fp8:
        columns = hidden // (512 if use_ue8m0 else 128)
        kind = torch.int32 if use_ue8m0 else torch.float32
        specs.append(TensorSpec(1, (local, rows, columns), (columns * rows, 1, rows), kind))
    return tuple(specs)


@lru_cache(maxsize=64)
def _dispatch_maker(
    device: torch.device, *shape: int | bool
) -> Callable[[], tuple[torch.Tensor, ...]]:
    return tensor_maker(device, dispatch_outputs(*shape))  # type: ignore[arg-type]


class _DeviceDispatch:
    """One dispatch: its outputs, and the two phases that fill them."""

    def __init__(self, backend: DeviceBackend, request: DispatchRequest) -> None:
        self._backend = backend
        self._request = request
        recv_count, src_info, layout_range, recv_x, *scales = _dispatch_maker(
            backend.device,
            request.num_experts // backend.size,
            backend.size,
            request.max_tokens_per_rank,
            request.x.shape[1],
            request.use_fp8,
            request.use_ue8m0,
        )()
        self.result = DispatchResult(
            recv_x, scales[0] if scales else None, recv_count, src_info, layout_range
        )
        self._epoch: torch.Tensor | None = None

    def run(self, phases: int) -> None:
        request, result, backend = self._request, self.result, self._backend
        if phases != SEND_AND_RECEIVE and self._epoch is None:
            self._epoch = request.x.new_empty((1,), dtype=torch.int64)
        backend.check()
        backend.engine.dispatch(
            request.x.data_ptr(),
            request.topk_idx.data_ptr(),
            result.recv_x.data_ptr(),
            _pointer(result.scales),
            result.recv_count.data_ptr(),
            result.src_info.data_ptr(),
            result.layout_range.data_ptr(),
            _pointer(request.cumulative_stats),
            _pointer(request.wait_stats),
            _pointer(self._epoch),
            request.x.shape[0],
            request.topk_idx.shape[1],
            request.max_tokens_per_rank,
            request.x.shape[1],
            request.num_experts,
            request.use_fp8,
            request.round_scale,
            request.use_ue8m0,
            phases,
            request.timeout_us,
            request.num_sms or backend.num_sms,
            backend.stream(),
        )


class _DeviceCombine:
    """One combine into ``request.out``."""

    def __init__(self, backend: DeviceBackend, request: CombineRequest) -> None:
        self._backend = backend
        self._request = request
        self._source = request.x
        if request.zero_copy:
            self._source = backend.combine_buffer.take(request)
        self._epoch: torch.Tensor | None = None

    def run(self, phases: int) -> None:
        request, backend = self._request, self._backend
        if phases != SEND_AND_RECEIVE and self._epoch is None:
            self._epoch = request.x.new_empty((1,), dtype=torch.int64)
        backend.check()
        backend.engine.combine(
            self._source.data_ptr(),
            self._source.stride(1) * self._source.element_size(),
            request.src_info.data_ptr(),
            request.layout_range.data_ptr(),
            request.topk_idx.data_ptr(),
            request.topk_weights.data_ptr(),
            request.out.data_ptr(),
            _pointer(request.wait_stats),
            _pointer(self._epoch),
            request.topk_idx.shape[0],
            request.topk_idx.shape[1],
            request.max_tokens_per_rank,
            request.x.shape[2],
            request.num_experts,
            request.use_logfmt,
            phases,
            request.timeout_us,
            request.num_sms or backend.num_sms,
            backend.stream(),
        )


class DeviceBackend:
    """Operations on this rank's GPU. ``engine`` is the subclass's: set before anything is called.

    ``num_sms`` is what an operation may use when the caller does not say.
    """

    name = "device"
    engine: Any
    num_sms: int

    def __init__(self, ranks: RankGroup, device: torch.device) -> None:
        self.rank, self.size, self.device = ranks.rank, ranks.size, device
        self.tensor_device: torch.device | None = device
        self.combine_buffer = CombineBuffer()

    def stream(self) -> int:
        """Give the handle of the current stream of this buffer's GPU."""
        return current_stream(self.device)

    def agree(self, ranks: RankGroup, problem: str | None) -> None:
        """Raise EPError on all ranks when one has a problem, so none waits for it. Collective."""
        try:
            raise_together(ranks, "set up symmetric memory", problem)
        except EPError:
            if self.engine is not None:
                self.engine.destroy()
            raise

    def dispatch(self, request: DispatchRequest) -> _DeviceDispatch:
        """Allocate the outputs of a dispatch."""
        return _DeviceDispatch(self, request)

    def combine(self, request: CombineRequest) -> _DeviceCombine:
        """Prepare a combine into ``request.out``."""
        return _DeviceCombine(self, request)

    def next_combine_buffer(
        self, max_tokens_per_rank: int, hidden: int, num_experts: int
    ) -> torch.Tensor:
        """Plain memory of this rank: the combine reads it here and sends to the peers."""
        # 16-byte rows, whatever the hidden size: the kernel reads vectors.
        stride = -(-(hidden + hidden // 64) // 8) * 8
        return self.combine_buffer.hand_out(
            num_experts // self.size, self.size * max_tokens_per_rank, hidden, stride, self.device
        )

    def local_buffer(self) -> torch.Tensor:
        """View this rank's symmetric memory as uint8."""
        return torch.as_tensor(_DeviceBytes(self.engine, self.rank), device=self.device)

    def clean(
        self, max_tokens_per_rank: int, hidden: int, num_experts: int, timeout_us: int
    ) -> None:
        """Forget what arrived, between two barriers of all ranks."""
        self.check()
        self.engine.clean(max_tokens_per_rank, hidden, num_experts, timeout_us, self.stream())

    def set_mask(self, rank: int, masked: bool) -> None:
        """Mask or unmask one rank for the launches that follow on this stream."""
        self.engine.set_mask(rank, masked, self.stream())

    def query_mask(self, out: torch.Tensor) -> None:
        """Copy the mask, int32 [R], in stream order."""
        self.engine.copy_mask(out.data_ptr(), self.stream())

    def clear_mask(self) -> None:
        """Unmask all ranks in stream order."""
        self.engine.clear_mask(self.stream())

    def check(self) -> None:
        """Raise what a kernel has recorded since the last call. Does not wait for the device."""
        problem = self.engine.take_problem()
        if problem is None:
            return
        kind, phase, peer, expert, token, waited_us = problem
        name = _PHASES[phase]
        if kind == _TIMEOUT:
            raise EPTimeoutError(
                rank=self.rank,
                peer=peer,
                phase=name,
                waited_us=waited_us,
                expert=None if expert < 0 else expert,
                detail="" if token < 0 else f"row or token {token} had not arrived.",
            )
        if kind == _EXPERT_OUT_OF_RANGE:
            raise EPError(
                f"rank {self.rank}: topk_idx selects expert {expert} for token {token}, which "
                f"does not exist; the selection was skipped.",
                rank=self.rank,
                peer=None,
                phase=name,
            )
        raise EPError(
            f"rank {self.rank}: expert {expert} of rank {peer} was selected more often than "
            f"num_max_dispatch_tokens_per_rank allows (first at token {token}): top-k rows repeat "
            f"it; the rows too many were not sent.",
            rank=self.rank,
            peer=peer,
            phase=name,
        )

    def destroy(self) -> None:
        """Wait for this GPU and free everything; peers keep what they have mapped."""
        self.engine.destroy()


class _DeviceBytes:
    """Lets torch view symmetric memory; torch keeps this object, and so the engine, alive."""

    def __init__(self, engine: Any, rank: int) -> None:
        self._engine = engine
        self.__cuda_array_interface__ = {
            "shape": (engine.num_bytes,),
            "typestr": "|u1",
            "data": (engine.address(rank), False),
            "version": 3,
            "strides": None,
        }
