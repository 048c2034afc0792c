"""Made results of benchmark runs, for tests of the report and of what it says."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
from ep_runtime.bench import results
from ep_runtime.bench.kinds import Kind
from ep_runtime.bench.options import Parameters
from ep_runtime.bench.pace import Rounds
from ep_runtime.bench.patterns import Shape, parse
from ep_runtime.bench.physical import Sent
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
FULL = replace(
    PARAMETERS,
    full=True,
    sweep=(
        ("num_tokens", (1, 2, 4, 8, 16, 32, 64, 128)),
        ("hidden", (1024, 2048, 4096, 7168)),
        ("num_experts", (64, 128, 256)),
        ("num_topk", (1, 2, 4, 8)),
    ),
)
VERSIONS = {"ep_runtime": "0.1.0", "torch": "2.13.0"}


def make_ranks(
    ranks=4,
    per_host=2,
    slow=(),
    backend="peer",
    host="node",
    iters=PARAMETERS.iters,
    parameters=PARAMETERS,
):
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
                place=Place(
                    f"cuda:{rank % per_host}",
                    "NVIDIA H200",
                    f"0000:{0x1B + rank % per_host:02x}:00.0",
                    (f"mlx5_{rank % per_host}",),
                ),
                backend=backend,
                transport="gloo",
                timing=results.Timing(
                    samples={name: values.tolist() for name, values in samples.items()},
                    barriers=rng.gamma(2, 1, 3 * iters).round(3).tolist(),
                    waits=waits,
                    rounds=Rounds(30, iters, True, 4.2 if iters >= 368 else None),
                    sent=make_sent(parameters, rank, ranks),
                    beside=make_beside(samples) if parameters.full else {},
                ),
                points=tuple(
                    make_point(axis, point, rank, ranks, rng) for axis, point in parameters.points()
                ),
            )
        )
    return everybody


@lru_cache(maxsize=4096)
def draw_sent(parameters, rank, ranks):
    p = parameters
    topk = parse("uniform").draw(Shape(p.num_tokens, p.num_experts, p.num_topk), rank, 0)
    return Sent.of(topk, ranks, p.num_experts)


def make_sent(parameters, rank, ranks):
    """What 16 ranks draw, again and again: a thousand would take a minute."""
    return draw_sent(parameters, rank % 16, ranks)


def make_beside(samples):
    """Times that follow from ``samples``, so that they can be told apart and known."""

    def times(factor):
        return {name: (values * factor).tolist() for name, values in samples.items()}

    halves = {
        f"{name}_{half}": (samples[name] / 2).tolist()
        for name in TIMED
        for half in ("send", "receive")
    }
    return {
        "end_to_end": Kind("perf_counter", times(1.5)),
        "kernel": Kind("CUDA events around graphs", times(0.8)),
        "hook": Kind("CUDA events", halves),
        "all_to_all": Kind("CUDA events, back to back", times(3.0)),
    }


def make_point(axis, parameters, rank, ranks, rng):
    """Times that grow with the bytes, above 10 us."""
    p = parameters
    size = p.num_tokens * p.num_topk * p.hidden / 3e4
    times = 10 + size * rng.gamma(50, 0.02, (2, 20))
    samples = {"dispatch": times[0], "combine": times[1], "pair": times.sum(axis=0)}
    return results.PointTimes(
        axis,
        parameters,
        {name: values.tolist() for name, values in samples.items()},
        make_sent(parameters, rank, ranks),
    )


def shared_by(parameters, ranks):
    """``parameters`` with so many experts that ``ranks`` can share them, in the sweep too."""
    least = max(parameters.num_experts, ranks)
    sweep = [
        (axis, (least, 2 * least) if axis == "num_experts" else values)
        for axis, values in parameters.sweep
    ]
    return replace(parameters, num_experts=least, sweep=tuple(sweep))


def make_report(correctness="passed", parameters=PARAMETERS, **changes):
    if changes.get("ranks", 0) > parameters.num_experts:
        parameters = shared_by(parameters, changes["ranks"])
    everybody = make_ranks(parameters=parameters, **changes)
    clock = results.Clock("CUDA events, back to back", "back_to_back")
    return results.document(parameters, "nonce", correctness, clock, everybody, VERSIONS)
