"""Device time of calls in CUDA graphs, where they follow each other at the GPU's own pace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

PER_GRAPH = 20


def captured(call: Callable[[], Any], calls: int = PER_GRAPH) -> torch.cuda.CUDAGraph:
    """Capture ``calls`` of them in one graph. Nothing runs, so nobody is waited for."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return graph


def device_times(call: Callable[[], Any], calls: int) -> list[float]:
    """Device time in us of each call, waited for one by one, by events around it."""
    times = []
    for _ in range(calls):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return times


def graph_times(graph: torch.cuda.CUDAGraph, replays: int = 10) -> list[float]:
    """Device time in us of one call of ``captured``, from each replay after the first."""
    graph.replay()
    return [time / PER_GRAPH for time in device_times(graph.replay, replays)]
