"""The fleet's figures: percentiles over what all ranks measured, bytes of the busiest one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ep_runtime.bench import confidence
from ep_runtime.bench.kinds import KINDS, Kind
from ep_runtime.bench.physical import Sent, Traffic, traffic
from ep_runtime.bench.statistics import (
    OPERATIONS,
    gigabytes_per_second,
    logical_bytes,
    spread,
    summarize,
)

if TYPE_CHECKING:
    from ep_runtime.bench.options import Parameters

NOT_ASKED = "not asked for (--full)"

Samples = Mapping[str, Sequence[float]]


def bytes_of(parameters: Parameters) -> dict[str, int]:
    """Logical bytes of each operation."""
    p = parameters
    return logical_bytes(p.num_tokens * p.num_topk, p.hidden, p.use_fp8, p.use_logfmt)


def operations(
    parameters: Parameters,
    backend: str,
    hosts: Sequence[str],
    samples: Sequence[Samples],
    sent: Sequence[Sent],
) -> dict[str, dict[str, Any]]:
    """Give the figures of each operation, from each rank's host, samples and selections."""
    moved = traffic(backend, parameters, hosts, sent)
    sizes = bytes_of(parameters)
    return {
        name: _figures([rank[name] for rank in samples], sizes[name], moved[name])
        for name in OPERATIONS
    }


def _figures(samples: Sequence[Sequence[float]], logical: int, moved: Traffic) -> dict[str, Any]:
    calls = np.array(samples, dtype=np.float64).T
    low, high = confidence.interval(calls)
    figures = summarize(calls.ravel().tolist(), logical)
    busiest = float((moved.same_host + moved.other_hosts).max())
    p50 = float(np.median(calls))
    return {
        **figures,
        "p99_interval_us": [round(low, 3), None if high is None else round(high, 3)],
        "same_host_bytes": round(float(moved.same_host.max())),
        "other_hosts_bytes": round(float(moved.other_hosts.max())),
        "physical_gbps": gigabytes_per_second(busiest, p50),
    }


def times(
    main: str, clock: str, samples: Sequence[Samples], beside: Sequence[Mapping[str, Kind]]
) -> dict[str, Any]:
    """Give all kinds of time: the main one from ``samples``, the others as measured beside."""
    found = {}
    for name in KINDS:
        if name == main:
            ranks = [Kind(clock, {key: list(rank[key]) for key in OPERATIONS}) for rank in samples]
        else:
            ranks = [rank.get(name, Kind.not_measured(NOT_ASKED)) for rank in beside]
        found[name] = kind(ranks)
    return found


def kind(ranks: Sequence[Kind]) -> dict[str, Any]:
    """Sum up one kind over all ranks, or say why it was not measured."""
    first = ranks[0]
    if first.reason:
        return {"not_measured": first.reason}
    figures = {
        name: spread([value for rank in ranks for value in rank.times[name]])
        for name in first.times
    }
    return {"clock": first.clock, "figures": figures}
