"""Made results of benchmark runs, for tests of the report and of what it says."""

from __future__ import annotations

import numpy as np
from ep_runtime.bench import results
from ep_runtime.bench.options import Parameters
from ep_runtime.bench.place import Place
from ep_runtime.bench.waits import TIMED, WaitFigures

PARAMETERS = Parameters(
    num_tokens=16,
    hidden=256,
    num_experts=64,
    num_topk=4,
    dtype="fp8",
    iters=50,
    warmup=5,
    seed=0,
    backend="auto",
    timeout_s=60.0,
)
VERSIONS = {"ep_runtime": "0.1.0", "torch": "2.13.0"}


def make_ranks(ranks=4, per_host=2, slow=(), backend="peer", host="node", iters=PARAMETERS.iters):
    """One result a rank; the ``slow`` ones send late."""
    rng = np.random.default_rng(0)
    everybody = []
    for rank in range(ranks):
        base = 100.0 if rank in slow else 50.0
        times = base + rng.gamma(2, 1, (2, iters)).round(3)
        samples = {"dispatch": times[0], "combine": times[1], "pair": times[0] + times[1]}
        late = np.where(np.isin(np.arange(ranks), slow), 50.0, 0.0)
        waits = {}
        for name in TIMED:
            measured = 20.0 + late + rng.gamma(2, 1, (iters, ranks))
            waits[name] = WaitFigures.of(measured, samples[name])
        everybody.append(
            results.RankResult(
                rank=rank,
                host=f"{host}-{rank // per_host}",
                place=Place(f"cuda:{rank % per_host}", "NVIDIA H200", "0000:1b:00.0", ("mlx5_0",)),
                backend=backend,
                transport="gloo",
                timing=results.Timing(
                    samples={name: values.tolist() for name, values in samples.items()},
                    barriers=rng.gamma(2, 1, 3 * iters).round(3).tolist(),
                    waits=waits,
                ),
            )
        )
    return everybody


def make_report(correctness="passed", **changes):
    everybody = make_ranks(**changes)
    return results.document(PARAMETERS, "nonce", correctness, "perf_counter", everybody, VERSIONS)
