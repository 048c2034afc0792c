"""One rank on one GPU: this runtime, and DeepEP where it can be imported, on the same inputs.

    python runtime/benchmarks/compare.py --json compare.json

Each case is checked before it is timed. The two take turns, round by round, so that drift of the
machine hits both. DeepEP is no dependency of ours: install a wheel beside it to compare.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from ep_runtime import Buffer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable

PER_GRAPH = 20


@dataclass(frozen=True)
class Case:
    """One shape to compare at."""

    tokens: int
    experts: int
    hidden: int = 7168
    topk: int = 8


CASES = [Case(1, 32), Case(8, 32), Case(128, 32), Case(8, 256), Case(128, 256)]


class Contender:
    """One implementation with its buffer, inputs and outputs for one case."""

    def __init__(self, name: str, buffer_class: Any, case: Case, max_tokens: int) -> None:
        self.name, self.case, self.max_tokens = name, case, max_tokens
        size = buffer_class.get_low_latency_rdma_size_hint(max_tokens, case.hidden, 1, case.experts)
        self.symmetric_bytes = size
        self.buffer = buffer_class(
            dist.group.WORLD,
            num_rdma_bytes=size,
            low_latency_mode=True,
            num_qps_per_rank=case.experts,
            explicitly_destroy=True,
        )
        draw = torch.Generator(device="cuda").manual_seed(11)
        self.x = torch.randn(
            case.tokens, case.hidden, generator=draw, device="cuda", dtype=torch.bfloat16
        )
        scores = torch.rand(case.tokens, case.experts, generator=draw, device="cuda")
        self.topk_idx = scores.topk(case.topk, dim=-1).indices
        self.weights = torch.rand(case.tokens, case.topk, generator=draw, device="cuda")
        *_, self.handle, _, _ = self.dispatch()
        self.rows = torch.randn(
            case.experts, max_tokens, case.hidden, device="cuda", dtype=torch.bfloat16
        )

    def dispatch(self, hook: bool = False) -> tuple[Any, ...]:
        """Dispatch the case's tokens in FP8."""
        return self.buffer.low_latency_dispatch(
            self.x,
            self.topk_idx,
            self.max_tokens,
            self.case.experts,
            use_fp8=True,
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
        data, scales = recv
        wanted = torch.bincount(self.topk_idx.flatten(), minlength=self.case.experts)
        assert torch.equal(count.long(), wanted), f"{self.name}: wrong counts"
        rows = data.float().unflatten(-1, (-1, 128)) * scales.unsqueeze(-1)
        rows = rows.flatten(-2).nan_to_num().bfloat16()
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
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(PER_GRAPH):
            call()
    graph.replay()
    times = []
    for _ in range(replays):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / PER_GRAPH)
    return statistics.median(times)


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


def measure(contender: Contender) -> dict[str, float]:
    """All figures of one contender, once."""
    return {
        "dispatch_kernel_us": kernel_times(contender.dispatch, "dispatch"),
        "combine_kernel_us": kernel_times(contender.combine, "combine"),
        "dispatch_hook_kernel_us": kernel_times(hooked(contender.dispatch), "dispatch"),
        "combine_hook_kernel_us": kernel_times(hooked(contender.combine), "combine"),
        "pair_graph_us": graph_time(contender.pair),
        "pair_eager_us": eager_time(contender.pair),
        "dispatch_host_us": host_time(contender.dispatch),
        "combine_host_us": host_time(contender.combine),
    }


def copy_rate() -> float:
    """GB/s of a 1 GiB device copy, bytes read and written."""
    source = torch.randint(0, 255, (2**30,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    times = []
    for _ in range(10):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return 2 * source.numel() / statistics.median(times) / 1e9


def compare(case: Case, classes: dict[str, Any], max_tokens: int, rounds: int) -> dict[str, Any]:
    """Check all contenders, then let them take turns."""
    samples: dict[str, dict[str, list[float]]] = {}
    sizes = {}
    contenders = [Contender(name, kind, case, max_tokens) for name, kind in classes.items()]
    for contender in contenders:
        contender.check()
        sizes[contender.name] = contender.symmetric_bytes
    for _ in range(rounds):
        for contender in contenders:
            into = samples.setdefault(contender.name, {})
            for key, value in measure(contender).items():
                into.setdefault(key, []).append(value)
    for contender in contenders:
        contender.buffer.destroy()
    figures = {
        name: {
            key: {
                "median": statistics.median(values),
                "min": min(values),
                "max": max(values),
            }
            for key, values in found.items()
        }
        for name, found in samples.items()
    }
    return {"case": asdict(case), "symmetric_bytes": sizes, "figures": figures}


def show(results: list[dict[str, Any]]) -> None:
    """Print the table of medians and ratios."""
    table = Table("tokens", "experts", "figure", title="medians in us, ratio to DeepEP")
    names = list(results[0]["figures"])
    for name in names:
        table.add_column(name, justify="right")
    table.add_column("ratio", justify="right")
    for result in results:
        case = result["case"]
        for key in result["figures"][names[0]]:
            values = [result["figures"][name][key] for name in names]
            ratio = f"{values[0]['median'] / values[1]['median']:.2f}" if len(values) > 1 else ""
            texts = [f"{v['median']:.1f} ({v['min']:.1f}-{v['max']:.1f})" for v in values]
            table.add_row(str(case["tokens"]), str(case["experts"]), key, *texts, ratio)
    Console(width=120).print(table)


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contender")
    parser.add_argument("--only-ours", action="store_true")
    options = parser.parse_args()
    torch.cuda.set_device(0)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    classes: dict[str, Any] = {"ep_runtime": Buffer}
    if not options.only_ours:
        classes["deep_ep"] = importlib.import_module("deep_ep").Buffer
    results = [compare(case, classes, options.max_tokens, options.rounds) for case in CASES]
    show(results)
    rate = copy_rate()
    print(f"device copy: {rate:.0f} GB/s read + written; {torch.cuda.get_device_name()}")
    if options.json:
        versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
        document = {"copy_gbps": rate, "versions": versions, "results": results}
        options.json.write_text(json.dumps(document, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
