"""Eight ranks on one GPU, 16 SMs each: how near the copy rate a dispatch comes.

    python runtime/benchmarks/shared.py

Several ranks cost bytes that one rank does not: a row is written to each destination rank and read
there again. All of them share one memory here, so the sum of their bytes is held against its rate.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from contender import Case, Contender, copy_rate, graph_time
from ep_runtime import Buffer

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests" / "cuda"
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

from mps import mps_server  # noqa: E402
from pool import RankPool  # noqa: E402

if TYPE_CHECKING:
    from pool import Rank

RANKS, SMS = 8, 16
CASES = [Case(128, 32), Case(128, 256)]
ROUNDS = 5


def bytes_moved(contender: Contender) -> int:
    """Bytes that this rank's dispatch must read and write in device memory."""
    case, ranks = contender.case, dist.get_world_size()
    row = case.hidden + case.hidden // 128 * 4
    destinations = torch.zeros(case.tokens, ranks, dtype=torch.bool, device="cuda")
    destinations.scatter_(1, contender.topk_idx // contender.local_experts, True)
    sent = torch.tensor([destinations.sum().item(), contender.topk_idx.numel()])
    dist.all_reduce(sent)  # what is sent by all is received by all
    rows, selections = (sent / ranks).tolist()
    return int(case.tokens * case.hidden * 2 + 2 * rows * row + selections * row)


def measure(me: Rank) -> list[dict[str, float]]:
    """Check and time the dispatch and the combine of each case on this rank."""
    figures = []
    for case in CASES:
        contender = Contender("ep_runtime", Buffer, case, case.tokens)
        contender.check()
        dispatch, combine = [], []
        for _ in range(ROUNDS):
            dist.barrier()
            dispatch.append(graph_time(contender.dispatch))
            dist.barrier()
            combine.append(graph_time(contender.combine))
        figures.append(
            {
                "experts": case.experts,
                "dispatch_us": statistics.median(dispatch),
                "combine_us": statistics.median(combine),
                "dispatch_bytes": bytes_moved(contender),
            }
        )
        contender.buffer.destroy()
    return figures


def main() -> None:
    """Run all ranks and print one line of JSON for each case."""
    rate = copy_rate()
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(HERE), str(TESTS), os.environ.get("PYTHONPATH", "")]
    )
    with mps_server() as env:
        pool = RankPool(RANKS, {**env, "EP_RUNTIME_NUM_SMS": str(SMS)})
        everyones: list[list[dict[str, Any]]] = pool.run("shared.measure")
        pool.close()
    for ranks in zip(*everyones, strict=True):
        total = sum(figures["dispatch_bytes"] for figures in ranks)
        slowest = max(figures["dispatch_us"] for figures in ranks)
        print(
            json.dumps(
                {
                    "ranks": RANKS,
                    "sms_per_rank": SMS,
                    "tokens": CASES[0].tokens,
                    "experts": ranks[0]["experts"],
                    "dispatch_us": slowest,
                    "combine_us": max(figures["combine_us"] for figures in ranks),
                    "dispatch_mb": total / 1e6,
                    "copy_gbps": rate,
                    "share_of_copy_rate": total / slowest / 1e3 / rate,
                }
            )
        )


if __name__ == "__main__":
    main()
