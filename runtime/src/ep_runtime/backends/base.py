"""What a backend owes ``Buffer``: the low-latency operations, split into their two phases.

``Buffer`` owns the public API: it checks arguments, picks streams, wraps events and hooks. A
backend owns symmetric memory and the work of each phase. Every operation is one object that
first sends and then receives, so a hook is simply ``operation.receive``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch

SEND = 1
RECEIVE = 2
SEND_AND_RECEIVE = SEND | RECEIVE


class DispatchRequest(NamedTuple):
    """Checked arguments of one ``low_latency_dispatch`` call.

    Shapes: ``x`` [T, H] bfloat16; ``topk_idx`` [T, K] int64 (-1 selects nothing);
    ``cumulative_stats`` int32 [experts per rank] or None; ``wait_stats`` int64 [ranks] or None.
    """

    x: torch.Tensor
    topk_idx: torch.Tensor
    max_tokens_per_rank: int
    num_experts: int
    cumulative_stats: torch.Tensor | None
    wait_stats: torch.Tensor | None
    use_fp8: bool
    round_scale: bool
    use_ue8m0: bool
    timeout_us: int
    num_sms: int


class DispatchResult(NamedTuple):
    """What a dispatch hands out; contents are defined only after its receive phase.

    Shapes, with L = experts per rank, R = ranks, M = ``max_tokens_per_rank``: ``recv_x``
    [L, R*M, H] float8_e4m3fn or bfloat16; ``scales`` logical [L, R*M, H/128] float32 (or
    [L, R*M, H/512] int32 with UE8M0), strides (groups*R*M, 1, R*M), None without FP8;
    ``recv_count`` int32 [L]; ``src_info`` int32 [L, R*M]; ``layout_range`` int64 [L, R]
    (begin row << 32 | count).
    """

    recv_x: torch.Tensor
    scales: torch.Tensor | None
    recv_count: torch.Tensor
    src_info: torch.Tensor
    layout_range: torch.Tensor


class CombineRequest(NamedTuple):
    """Checked arguments of one ``low_latency_combine`` call.

    Shapes: ``x`` [L, R*M, H] bfloat16; ``topk_idx`` [T, K] int64; ``topk_weights`` [T, K]
    float32; ``src_info`` and ``layout_range`` as handed out by the dispatch; ``out`` [T, H]
    bfloat16, always allocated by ``Buffer``; ``wait_stats`` int64 [R] or None.
    """

    x: torch.Tensor
    topk_idx: torch.Tensor
    topk_weights: torch.Tensor
    src_info: torch.Tensor
    layout_range: torch.Tensor
    max_tokens_per_rank: int
    num_experts: int
    use_logfmt: bool
    zero_copy: bool
    out: torch.Tensor
    wait_stats: torch.Tensor | None
    timeout_us: int
    num_sms: int


class Operation(Protocol):
    """One dispatch or combine in flight; tensors it needs stay alive with it."""

    def run(self, phases: int) -> None:
        """Launch ``SEND``, ``RECEIVE`` or both on the current stream (on CPU: do it now)."""


class DispatchOperation(Operation, Protocol):
    """A dispatch in flight."""

    result: DispatchResult


class Backend(Protocol):
    """Symmetric memory of one group and the operations on it.

    ``masked`` ranks are neither sent to nor waited for. All methods but the operations' phases
    may be collective over the group where said so.

    ``tensor_device`` is where tensors must be, None for the CPU or any GPU.
    """

    name: str
    tensor_device: torch.device | None

    def dispatch(self, request: DispatchRequest) -> DispatchOperation:
        """Prepare a dispatch (allocates its outputs; launches nothing)."""

    def combine(self, request: CombineRequest) -> Operation:
        """Prepare a combine into ``request.out`` (launches nothing)."""

    def next_combine_buffer(
        self, max_tokens_per_rank: int, hidden: int, num_experts: int
    ) -> torch.Tensor:
        """Give what the next ``zero_copy`` combine reads: BF16 [L, R*M, H].

        Rows are S = H + H/64 elements apart, rounded up to whole 16-byte vectors.
        """

    def local_buffer(self) -> torch.Tensor:
        """Give all local symmetric memory as uint8; all zero means "nothing has arrived"."""

    def clean(
        self, max_tokens_per_rank: int, hidden: int, num_experts: int, timeout_us: int
    ) -> None:
        """Forget everything that has arrived. Collective."""

    def set_mask(self, rank: int, masked: bool) -> None:
        """Mask or unmask one rank, in this process's view only."""

    def query_mask(self, out: torch.Tensor) -> None:
        """Write 0 or 1 per rank into ``out`` (int32 [R])."""

    def clear_mask(self) -> None:
        """Unmask all ranks."""

    def check(self) -> None:
        """Raise the error that an earlier, asynchronous phase recorded, if any (no device sync)."""

    def transport_report(self) -> dict[str, Any]:
        """Say what really carries the data: per peer "self", "same-gpu", "peer-memory", "gloo"."""

    def destroy(self) -> None:
        """Free symmetric memory. Safe in any order over the ranks, and after a peer died."""
