"""The kinds of time beside the main figures: kernels alone, end to end, back to back, by hook.

Each answers another question: what the GPU needs (kernel), what a program sees that waits for the
result (end_to_end) or goes on calling (back_to_back), and what is left of an operation when the
caller computes between its two phases (hook).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ep_runtime.bench import device_time
from ep_runtime.bench.clocks import DeviceChain, Round, Times, alone, chain_on_host
from ep_runtime.errors import first_line

if TYPE_CHECKING:
    from ep_runtime.bench.measure import Operations

END_TO_END = "end_to_end"
BACK_TO_BACK = "back_to_back"
KERNEL = "kernel"
HOOK = "hook"
KINDS = (END_TO_END, BACK_TO_BACK, KERNEL, HOOK)
# Stands beside the kinds in reports.
ALL_TO_ALL = "all_to_all"
_TITLES = {
    KERNEL: "Kernels alone",
    BACK_TO_BACK: "Back to back",
    END_TO_END: "End to end",
    HOOK: "By hook",
    ALL_TO_ALL: "torch's all_to_all",
}

_REPLAYS = 20


@dataclass(frozen=True)
class HookedOperations:
    """The calls in two phases: both give the hook that receives, ``dispatch`` a handle before."""

    dispatch: Callable[[], tuple[Any, Callable[[], None]]]
    combine: Callable[[Any], Callable[[], None]]

    def round(self) -> Round:
        """Make the four stretches of a round, one after another."""
        handle, receive = self.dispatch()
        yield "dispatch_send"
        receive()
        yield "dispatch_receive"
        receive = self.combine(handle)
        yield "combine_send"
        receive()
        yield "combine_receive"


@dataclass(frozen=True)
class Kind:
    """Times of one kind on one rank, or in ``reason`` why there are none."""

    clock: str
    times: Times
    reason: str = ""

    @classmethod
    def not_measured(cls, reason: str) -> Kind:
        """Say why."""
        return cls("", {}, reason)


@dataclass(frozen=True)
class Row:
    """A line of a table of all kinds of time: percentiles by operation, or why there are none."""

    kind: str
    title: str
    figures: Mapping[str, Mapping[str, float]]
    clock: str
    reason: str


def rows(report: Mapping[str, Any]) -> list[Row]:
    """Lay out the kinds of a passed run, all_to_all last; the phases of a hook are two rows."""
    found = []
    for kind, title in _TITLES.items():
        entry = report[kind] if kind == ALL_TO_ALL else report["times"][kind]
        if "not_measured" in entry:
            found.append(Row(kind, title, {}, "", entry["not_measured"]))
            continue
        figures, clock = entry["figures"], entry["clock"]
        if kind != HOOK:
            found.append(Row(kind, title, figures, clock, ""))
            continue
        for half in ("send", "receive"):
            of_half = {name: figures[f"{name}_{half}"] for name in ("dispatch", "combine")}
            found.append(Row(kind, f"{title}, {half}", of_half, clock, ""))
    return found


def main_kind(device: torch.device) -> str:
    """Which kind the main figures of a run on ``device`` are."""
    return BACK_TO_BACK if device.type == "cuda" else END_TO_END


def others(
    operations: Operations,
    hooked: HookedOperations,
    device: torch.device,
    rounds: int,
    has_kernels: bool,
    agree: Callable[[str], Sequence[str]],
) -> dict[str, Kind]:
    """Measure every kind but the main one. Collective.

    ``has_kernels``: whether the backend runs kernels of its own. ``agree`` gives everybody's text.
    """
    if device.type == "cuda":
        chain = DeviceChain(operations.barrier, operations.pair)
        chain.calibrate(lambda count: (hooked.round() for _ in range(count)))
        hook = Kind("CUDA events", chain.run(hooked.round() for _ in range(rounds)))
        return {
            END_TO_END: _end_to_end(operations, rounds),
            KERNEL: _kernels(operations, has_kernels, agree),
            HOOK: hook,
        }
    operations.barrier()
    chained = chain_on_host(operations.round() for _ in range(rounds))
    operations.barrier()
    by_hook = chain_on_host(hooked.round() for _ in range(rounds))
    return {
        BACK_TO_BACK: Kind("perf_counter", chained),
        KERNEL: _kernels(operations, has_kernels, agree),
        HOOK: Kind("perf_counter", by_hook),
    }


def _end_to_end(operations: Operations, rounds: int) -> Kind:
    """Each call alone behind a barrier, until its result is there, by the host's clock."""
    times: Times = {"dispatch": [], "combine": [], "pair": []}

    def timed(call: Callable[[], Any], into: list[float]) -> Any:
        result, time_us = alone(operations.barrier, call, torch.device("cuda"))
        into.append(time_us)
        return result

    for _ in range(rounds):
        handle = timed(partial(operations.dispatch, None), times["dispatch"])
        timed(partial(operations.combine, handle, None), times["combine"])
        timed(operations.pair, times["pair"])
    return Kind("perf_counter until the GPU is done, barrier before each call", times)


def _kernels(
    operations: Operations, has_kernels: bool, agree: Callable[[str], Sequence[str]]
) -> Kind:
    """In CUDA graphs. Captured by all or replayed by none: a replay waits for its peers."""
    if not has_kernels:
        return Kind.not_measured("this backend has no kernels of its own")
    handle = operations.dispatch(None)
    calls: dict[str, Callable[[], object]] = {
        "dispatch": partial(operations.dispatch, None),
        "combine": partial(operations.combine, handle, None),
        "pair": operations.pair,
    }
    graphs, problem = {}, ""
    try:
        graphs = {name: device_time.captured(call) for name, call in calls.items()}
    except RuntimeError as error:
        problem = first_line(error)
    for rank, reason in enumerate(agree(problem)):
        if reason:
            return Kind.not_measured(f"rank {rank} could not capture a CUDA graph: {reason}")
    times: Times = {}
    for name, graph in graphs.items():
        operations.barrier()
        times[name] = device_time.graph_times(graph, _REPLAYS)
    return Kind(
        f"CUDA events around graphs of {device_time.PER_GRAPH} calls, launches included", times
    )
