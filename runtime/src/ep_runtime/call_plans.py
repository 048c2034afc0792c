"""Calls without Python in between: where there are kernels, a shape's second call takes this way.

Kernels take microseconds; in Python the checks, requests and launch of one call take several times
as long. The first call of a shape, and each one that is not quite as planned, goes the usual way,
whose checks say what is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ep_runtime import _core
from ep_runtime.backends.device import dispatch_outputs
from ep_runtime.events import EventOverlap
from ep_runtime.new_tensors import torch_libraries

if TYPE_CHECKING:
    from collections.abc import Callable

    from ep_runtime.backends.base import CombineRequest, DispatchRequest
    from ep_runtime.backends.device import DeviceBackend
    from ep_runtime.launch import Launcher

    Hook = Callable[[], None]

# A caller that gives every call another time limit must not fill the memory.
_MOST_PLANS = 64


class _PlannedReceive:
    """The receive phase of a planned call, as an operation."""

    def __init__(self, backend: DeviceBackend, pending: Any) -> None:
        self._backend, self._pending = backend, pending

    def run(self, phases: int) -> None:
        stream = self._backend.stream()
        if not self._pending.run(stream):
            self._backend.check()  # raises what a kernel has recorded
            self._pending.run(stream)


class CallPlans:
    """The plans of one buffer. A ``key`` holds the plain values that a call was made with."""

    def __init__(self, backend: DeviceBackend, launcher: Launcher) -> None:
        self._backend, self._launcher = backend, launcher
        self._device = backend.device
        self._plans: dict[tuple[Any, ...], Any] = {}
        self._hidden: dict[tuple[Any, ...], int] = {}  # that a plan is for
        self._supported = True

    def dispatch(
        self,
        key: tuple[Any, ...],
        return_recv_hook: bool,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        cumulative_stats: torch.Tensor | None,
        wait_stats: torch.Tensor | None,
    ) -> tuple[Any, Any, Any, EventOverlap, Hook | None] | None:
        """Dispatch, or give None having done nothing."""
        plan = self._plans.get(key)
        if plan is None:
            return None
        stream = self._launcher.direct_stream(self._device, return_recv_hook)
        if stream is None:
            return None
        done = plan(x, topk_idx, cumulative_stats, wait_stats, return_recv_hook, stream)
        if done is None:
            return None
        recv_x, recv_count, handle, pending = done
        hook = None if pending is None else self._hook(pending, "low_latency_dispatch")
        return recv_x, recv_count, handle, EventOverlap(), hook

    def combine(
        self,
        key: tuple[Any, ...],
        return_recv_hook: bool,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        src_info: torch.Tensor,
        layout_range: torch.Tensor,
        out: torch.Tensor | None,
        wait_stats: torch.Tensor | None,
    ) -> tuple[Any, EventOverlap, Hook | None] | None:
        """Combine, or give None having done nothing."""
        plan = self._plans.get(key)
        if plan is None:
            return None
        stream = self._launcher.direct_stream(self._device, return_recv_hook)
        if stream is None:
            return None
        done = plan(
            x,
            topk_idx,
            topk_weights,
            src_info,
            layout_range,
            out,
            wait_stats,
            return_recv_hook,
            stream,
        )
        if done is None:
            return None
        combined, pending = done
        hook = None if pending is None else self._hook(pending, "low_latency_combine")
        return combined, EventOverlap(), hook

    def remember_dispatch(self, key: tuple[Any, ...], request: DispatchRequest) -> None:
        """Plan calls like this one, which went well."""
        hidden = request.x.shape[1]
        setting = self._setting(key, request, hidden)
        if setting is None:
            return
        specs = dispatch_outputs(
            request.num_experts // self._backend.size,
            self._backend.size,
            request.max_tokens_per_rank,
            hidden,
            request.use_fp8,
            request.use_ue8m0,
        )
        plan = setting.dispatch(
            [spec.compiled() for spec in specs],
            request.use_fp8,
            request.round_scale,
            request.use_ue8m0,
        )
        self._remember(key, hidden, plan)

    def remember_combine(self, key: tuple[Any, ...], request: CombineRequest) -> None:
        """Plan calls like this one, which went well."""
        hidden = request.x.shape[2]
        setting = self._setting(key, request, hidden)
        if setting is not None:
            self._remember(key, hidden, setting.combine(request.use_logfmt))

    def _hook(self, pending: Any, name: str) -> Hook:
        return self._launcher.hook(_PlannedReceive(self._backend, pending), name, self._device)

    def _setting(
        self, key: tuple[Any, ...], request: DispatchRequest | CombineRequest, hidden: int
    ) -> Any:
        """Start a plan, or give None where there is one or can't be one."""
        backend = self._backend
        if not self._supported or self._hidden.get(key) == hidden:
            return None
        setting = backend.engine.plan_setting(
            torch_libraries(),
            torch.Tensor,
            self._device.index,
            backend.size,
            min(_core.MAX_TOPK, request.num_experts),
            request.max_tokens_per_rank,
            hidden,
            request.num_experts,
            request.timeout_us,
            request.num_sms or backend.num_sms,
        )
        self._supported = setting is not None
        return setting

    def _remember(self, key: tuple[Any, ...], hidden: int, plan: Any) -> None:
        if plan is None:
            self._supported = False
            return
        if len(self._plans) >= _MOST_PLANS:
            self._plans.clear()
            self._hidden.clear()
        self._plans[key], self._hidden[key] = plan, hidden
