"""One rank on one GPU: this runtime, and DeepEP where it can be imported, on the same inputs.

    python runtime/benchmarks/compare.py --json compare.json

Each case is checked before it is timed. The two take turns, round by round, so that drift of the
machine hits both. DeepEP is no dependency of ours: install a wheel beside it to compare.
"""

from __future__ import annotations

import argparse
import importlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from contender import (
    Case,
    Contender,
    copy_rate,
    measure_device,
    measure_host,
    shown,
    spread,
)
from ep_runtime import Buffer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable

CASES = [Case(1, 32), Case(8, 32), Case(128, 32), Case(8, 256), Case(128, 256)]


def compare(
    case: Case,
    classes: dict[str, Any],
    max_tokens: int,
    rounds: int,
    measure: Callable[[Contender], dict[str, float]],
) -> dict[str, Any]:
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
        name: {key: spread(values) for key, values in found.items()}
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
            texts = [shown(value) for value in values]
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
    results = []
    shape = (classes, options.max_tokens, options.rounds)
    for case in CASES:
        results.append(compare(case, *shape, measure_host))
    for case, result in zip(CASES, results, strict=True):
        for name, figures in compare(case, *shape, measure_device)["figures"].items():
            result["figures"][name].update(figures)
    show(results)
    rate = copy_rate()
    print(f"device copy: {rate:.0f} GB/s read + written; {torch.cuda.get_device_name()}")
    if options.json:
        versions = {"torch": torch.__version__, "cuda": torch.version.cuda}
        document = {"copy_gbps": rate, "versions": versions, "results": results}
        options.json.write_text(json.dumps(document, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
