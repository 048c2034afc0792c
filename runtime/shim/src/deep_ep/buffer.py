"""``Buffer`` as DeepEP's callers know it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar, cast

import ep_runtime
from ep_runtime.shared_buffer import shared_buffer

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch.distributed as dist

    Method = TypeVar("Method", bound=Callable[..., Any])

# Arguments that only forks of DeepEP know, and which fork that is.
_FORK_ARGUMENTS = {
    "use_nvfp4": "NVFP4 dispatch",
    "x_global_scale": "NVFP4 dispatch",
    "overlap": "overlapping the down projection with the combine",
    "packed_recv_count": "overlapping the down projection with the combine",
    "comp_signal": "overlapping the down projection with the combine",
    "block_m": "overlapping the down projection with the combine",
    "threshold": "overlapping the down projection with the combine",
    "src_signals": "overlapping the down projection with the combine",
    "src_signal_expect_value": "overlapping the down projection with the combine",
}


def _refuse_fork_arguments(method: Method) -> Method:
    """Let ``method`` name what it does not have; its signature stays."""

    @functools.wraps(method)
    def checked(*arguments: Any, **named: Any) -> Any:
        if not _FORK_ARGUMENTS.keys().isdisjoint(named):
            name = next(name for name in named if name in _FORK_ARGUMENTS)
            raise TypeError(
                f"{method.__name__} has no argument {name}: {_FORK_ARGUMENTS[name]} exists only in "
                "a fork of DeepEP. Turn it off in the program that passes it."
            )
        return method(*arguments, **named)

    return cast("Method", checked)


class Buffer(ep_runtime.Buffer):
    """``ep_runtime.Buffer``, whose low-latency calls name the arguments of forks."""

    low_latency_dispatch = _refuse_fork_arguments(ep_runtime.Buffer.low_latency_dispatch)
    low_latency_combine = _refuse_fork_arguments(ep_runtime.Buffer.low_latency_combine)


def get_buffer(
    group: dist.ProcessGroup, num_max_dispatch_tokens_per_rank: int, hidden: int, num_experts: int
) -> Buffer:
    """Give the process's low-latency buffer for this group and shape; see ``ep_runtime``."""
    return shared_buffer(Buffer, group, num_max_dispatch_tokens_per_rank, hidden, num_experts)
