"""One implementation of DeepEP's low-latency calls, and how its time is taken.

Works on any number of ranks: every rank makes the same calls in the same order.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from ep_runtime.bench.device_time import captured, device_times, graph_times

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True)
class Case:
    """One shape to compare at."""

    tokens: int
    experts: int
    hidden: int = 7168
    topk: int = 8
    fp8: bool = True


class Contender:
    """One implementation with its buffer, this rank's inputs and its outputs for one case.

    Raises AssertionError from ``check()`` where a result is wrong.
    """

    def __init__(self, name: str, buffer_class: Any, case: Case, max_tokens: int) -> None:
        self.name, self.case, self.max_tokens = name, case, max_tokens
        rank, ranks = dist.get_rank(), dist.get_world_size()
        self.local_experts = case.experts // ranks
        size = buffer_class.get_low_latency_rdma_size_hint(
            max_tokens, case.hidden, ranks, case.experts
        )
        self.symmetric_bytes = size
        self.buffer = buffer_class(
            dist.group.WORLD,
            num_rdma_bytes=size,
            low_latency_mode=True,
            num_qps_per_rank=self.local_experts,
            explicitly_destroy=True,
        )
        draw = torch.Generator(device="cuda").manual_seed(11 + rank)
        self.x = torch.randn(
            case.tokens, case.hidden, generator=draw, device="cuda", dtype=torch.bfloat16
        )
        scores = torch.rand(case.tokens, case.experts, generator=draw, device="cuda")
        self.topk_idx = scores.topk(case.topk, dim=-1).indices
        self.weights = torch.rand(case.tokens, case.topk, generator=draw, device="cuda")
        *_, self.handle, _, _ = self.dispatch()
        self.rows = torch.randn(
            self.local_experts,
            max_tokens * ranks,
            case.hidden,
            device="cuda",
            dtype=torch.bfloat16,
        )

    def dispatch(self, hook: bool = False) -> tuple[Any, ...]:
        """Dispatch the case's tokens."""
        return self.buffer.low_latency_dispatch(
            self.x,
            self.topk_idx,
            self.max_tokens,
            self.case.experts,
            use_fp8=self.case.fp8,
            return_recv_hook=hook,
        )

    def combine(self, hook: bool = False) -> tuple[Any, ...]:
        """Combine random rows."""
        return self.buffer.low_latency_combine(
            self.rows, self.topk_idx, self.weights, self.handle, return_recv_hook=hook
        )

    def pair(self) -> None:
        """Dispatch, then combine."""
        self.dispatch()
        self.combine()

    def check(self) -> None:
        """Identity experts must give every token back, weighted and within FP8's precision."""
        recv, count, handle, _, _ = self.dispatch()
        chosen = torch.bincount(self.topk_idx.flatten(), minlength=self.case.experts).cpu()
        dist.all_reduce(chosen)
        first = dist.get_rank() * self.local_experts
        wanted = chosen[first : first + self.local_experts]
        assert torch.equal(count.long().cpu(), wanted), f"{self.name}: wrong counts"
        if self.case.fp8:
            data, scales = recv
            rows = data.float().unflatten(-1, (-1, 128)) * scales.unsqueeze(-1)
            rows = rows.flatten(-2).nan_to_num().bfloat16()
        else:
            rows = recv
        out, _, _ = self.buffer.low_latency_combine(rows, self.topk_idx, self.weights, handle)
        exact = self.x.double() * self.weights.double().sum(1, keepdim=True)
        error = ((out.double() - exact).norm() / exact.norm()).item()
        assert error < 0.04, f"{self.name}: combine is off by {error}"


def kernel_times(call: Callable[[], Any], word: str, calls: int = 30) -> float:
    """Median device time in us, per call, of the kernels whose name holds ``word``."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    kernels = sorted(
        (event.time_range.start, event.time_range.elapsed_us())
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA and word in event.name
    )
    per_call, rest = divmod(len(kernels), calls)
    assert per_call > 0 and rest == 0, f"{len(kernels)} kernels named {word} in {calls} calls"
    durations = [duration for _, duration in kernels]
    return statistics.median(
        sum(durations[first : first + per_call]) for first in range(0, len(durations), per_call)
    )


def graph_time(call: Callable[[], Any], replays: int = 10) -> float:
    """Device time in us of one call, by events around replays of a graph of many."""
    return statistics.median(graph_times(captured(call), replays))


def eager_time(call: Callable[[], Any], calls: int = 200) -> float:
    """Wall time in us of one call when calls follow each other."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e6 / calls


def host_time(call: Callable[[], Any], calls: int = 64) -> float:
    """Time in us until a call returns, while the device is kept from holding it up."""
    times = []
    torch.cuda.synchronize()
    for number in range(calls):
        if number % 8 == 0:
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    torch.cuda.synchronize()
    return statistics.median(times)


def hooked(make: Callable[..., tuple[Any, ...]]) -> Callable[[], None]:
    """Make one call of both phases, as two launches."""

    def call() -> None:
        make(hook=True)[-1]()

    return call


def measure_host(contender: Contender) -> dict[str, float]:
    """Figures that the host bounds, once; in a process in which no profiler has run.

    A profiler leaves its callbacks behind, which double the time of a launch.
    """
    return {
        "pair_eager_us": eager_time(contender.pair),
        "dispatch_host_us": host_time(contender.dispatch),
        "combine_host_us": host_time(contender.combine),
        "dispatch_hook_host_us": host_time(hooked(contender.dispatch)),
        "combine_hook_host_us": host_time(hooked(contender.combine)),
    }


def measure_device(contender: Contender) -> dict[str, float]:
    """Figures of the device, once."""
    return {
        "dispatch_kernel_us": kernel_times(contender.dispatch, "dispatch"),
        "combine_kernel_us": kernel_times(contender.combine, "combine"),
        "dispatch_hook_kernel_us": kernel_times(hooked(contender.dispatch), "dispatch"),
        "combine_hook_kernel_us": kernel_times(hooked(contender.combine), "combine"),
        "pair_graph_us": graph_time(contender.pair),
    }


def copy_rate() -> float:
    """GB/s of a 1 GiB device copy, bytes read and written."""
    source = torch.randint(0, 255, (2**30,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    time_us = statistics.median(device_times(lambda: target.copy_(source), 10))
    return 2 * source.numel() / time_us / 1e3


def together(calls: dict[str, Callable[[], Any]], kind: str) -> dict[str, float]:
    """Time each call as ``kind``, graph or eager, by all ranks at once; in us, by name and kind."""
    take = {"graph": graph_time, "eager": eager_time}[kind]
    figures = {}
    for name, call in calls.items():
        dist.barrier()
        figures[f"{name}_{kind}_us"] = take(call)
    return figures


def spread(values: Sequence[float]) -> dict[str, float]:
    """Sum up repeated figures."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def shown(figure: dict[str, float]) -> str:
    """Write a ``spread`` for a table."""
    return f"{figure['median']:.1f} ({figure['min']:.1f}-{figure['max']:.1f})"
