"""Kernels and symmetric memory of the peer backend; built where nvcc was found."""

from typing import Any

import torch

ARCHITECTURES: str
CUDA_VERSION: int

class Engine:
    """One buffer's device side. Addresses and streams are integers; 0 means "not given"."""

    num_sms: int
    num_bytes: int

    def address(self, rank: int) -> int: ...
    def start(self) -> None: ...
    def dispatch(
        self,
        x: int,
        topk_idx: int,
        recv_x: int,
        scales: int,
        recv_count: int,
        src_info: int,
        layout_range: int,
        cumulative_stats: int,
        wait_stats: int,
        op_epoch: int,
        num_tokens: int,
        num_topk: int,
        max_tokens: int,
        hidden: int,
        num_experts: int,
        use_fp8: bool,
        round_scale: bool,
        use_ue8m0: bool,
        phases: int,
        timeout_us: int,
        num_sms: int,
        stream: int,
        /,
    ) -> None: ...
    def combine(
        self,
        x: int,
        x_row_bytes: int,
        src_info: int,
        layout_range: int,
        topk_idx: int,
        topk_weights: int,
        out: int,
        wait_stats: int,
        op_epoch: int,
        num_tokens: int,
        num_topk: int,
        max_tokens: int,
        hidden: int,
        num_experts: int,
        use_logfmt: bool,
        phases: int,
        timeout_us: int,
        num_sms: int,
        stream: int,
        /,
    ) -> None: ...
    def clean(
        self,
        max_tokens: int,
        hidden: int,
        num_experts: int,
        timeout_us: int,
        stream: int,
        /,
    ) -> None: ...
    def set_mask(self, rank: int, masked: bool, stream: int, /) -> None: ...
    def copy_mask(self, out: int, stream: int, /) -> None: ...
    def clear_mask(self, stream: int, /) -> None: ...
    def plan_setting(
        self,
        libraries: list[str],
        tensor_type: type[torch.Tensor],
        device_index: int,
        num_ranks: int,
        topk_capacity: int,
        max_tokens: int,
        hidden: int,
        num_experts: int,
        timeout_us: int,
        num_sms: int,
        /,
    ) -> PlanSetting | None:
        """None where the loaded torch lacks a function that plans need."""
    def take_problem(self) -> tuple[int, int, int, int, int, int] | None: ...
    def destroy(self) -> None: ...

class PlanSetting:
    """What plans of one shape share."""

    def dispatch(
        self,
        outputs: list[tuple[int, list[int], list[int], str, int]],
        use_fp8: bool,
        round_scale: bool,
        use_ue8m0: bool,
        /,
    ) -> DispatchPlan | None: ...
    def combine(self, use_logfmt: bool, /) -> CombinePlan | None: ...

class PendingReceive:
    """The receive phase of an operation that was only sent."""

    def run(self, stream: int, /) -> bool:
        """Launch it; False, with nothing launched, when a kernel has recorded a problem."""

class DispatchPlan:
    """Dispatches of one shape and options; None for a call that is another."""

    def __call__(
        self,
        x: object,
        topk_idx: object,
        cumulative_stats: object,
        wait_stats: object,
        only_send: bool,
        stream: int,
        /,
    ) -> tuple[Any, torch.Tensor, tuple[Any, ...], PendingReceive | None] | None: ...

class CombinePlan:
    """Combines of one shape and options; None for a call that is another."""

    def __call__(
        self,
        x: object,
        topk_idx: object,
        topk_weights: object,
        src_info: object,
        layout_range: object,
        out: object,
        wait_stats: object,
        only_send: bool,
        stream: int,
        /,
    ) -> tuple[torch.Tensor, PendingReceive | None] | None: ...

class PeerEngine(Engine):
    """An engine over memory that is mapped between the processes of one host."""

    def __init__(
        self, device: int, num_bytes: int, rank: int, num_ranks: int, enable_shrink: bool
    ) -> None: ...
    def export_descriptor(self) -> int: ...
    def import_descriptor(self, peer: int, descriptor: int) -> None: ...
