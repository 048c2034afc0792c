"""The verdict in words: which host, GPU and NIC, on what evidence, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ep_runtime.bench.blame import LATE, LINK, RECEIVER, SENDER, Culprit, OperationWaits, blame
from ep_runtime.bench.pairs import PAIRWISE
from ep_runtime.bench.waits import SHIFT_SHARE, TIMED, low_median, median_error

if TYPE_CHECKING:
    from ep_runtime.bench.blame import Array
    from ep_runtime.bench.results import RankResult, Timing

_FEW = 8

_ADVICE = {
    SENDER: "Look for what slows the {unit} down: GPU clocks and throttling (nvidia-smi -q -d "
    "PERFORMANCE), other processes on the GPU or the CPU, CPU frequency and NUMA placement.",
    RECEIVER: "Look at how the {unit} takes data in: the PCIe link's width and speed, the GPU's "
    "memory, other processes on the GPU or the CPU.",
    LINK: "Look at the network path: rate, width and error counters of the NIC's port, cable and "
    "switch port, routing and PFC/ECN settings, traffic of others.",
    LATE: "Look for what keeps the {unit} from starting in time: other processes, CPU starvation, "
    "interrupts, clocks.",
}


def find(
    ranks: Sequence[RankResult], timings: Sequence[Timing], late: Array
) -> list[dict[str, Any]]:
    """Name who is slow, ready for JSON, worst first.

    ``late`` [ranks, barriers]: microseconds that each rank came after the first.
    """
    operations = {}
    for name in TIMED:
        figures = [timing.waits[name] for timing in timings]
        operations[name] = OperationWaits(
            p50=np.array([item.p50_us for item in figures], dtype=np.float64),
            low=np.array([item.low_us for item in figures], dtype=np.float64),
            own=np.array([item.own_us for item in figures]),
            median=float(np.median([timing.samples[name] for timing in timings])),
            error=float(np.median([item.error for item in figures])),
        )
    swept = [result.swept for result in ranks if result.swept is not None]
    for name in TIMED if swept else ():
        operations[PAIRWISE[name]] = OperationWaits(
            p50=np.array([figures.p50[name] for figures in swept], dtype=np.float64),
            low=np.array([figures.low[name] for figures in swept], dtype=np.float64),
            own=np.array([figures.own[name] for figures in swept]),
            median=float(np.median([figures.call[name] for figures in swept])),
            error=float(np.median([figures.error[name] for figures in swept])),
        )
    hosts = [result.host for result in ranks]
    lateness = np.median(late, axis=1), low_median(late.T)
    shift = SHIFT_SHARE * min(waits.median for waits in operations.values())
    found = blame(hosts, operations, lateness, median_error(late.T, shift))
    return [_described(culprit, ranks) for culprit in found]


def _described(culprit: Culprit, ranks: Sequence[RankResult]) -> dict[str, Any]:
    concerned = [ranks[rank] for rank in culprit.ranks]
    unit = "host" if culprit.whole_host else "rank"
    return {
        "kind": culprit.kind,
        "hosts": list(dict.fromkeys(result.host for result in concerned)),
        "ranks": [result.rank for result in concerned],
        "peers": [ranks[rank].rank for rank in culprit.peers],
        "gpus": [result.place.gpu for result in concerned if result.place.gpu],
        "nics": list(dict.fromkeys(nic for result in concerned for nic in result.place.nics)),
        "whole_host": culprit.whole_host,
        "excess_us": culprit.excess_us,
        "usual_us": culprit.usual_us,
        "what": _sentence(culprit, ranks),
        "evidence": _evidence(culprit),
        "advice": _ADVICE[culprit.kind].format(unit=unit),
    }


def _sentence(culprit: Culprit, ranks: Sequence[RankResult]) -> str:
    who = _named(culprit.ranks, ranks, culprit.whole_host)
    if culprit.kind == LINK and culprit.peers:
        peers = _named(culprit.peers, ranks, culprit.whole_host)
        return f"The link from {who} to {peers} is slow."
    if culprit.kind == LINK:
        return f"The network link of {who} is slow."
    does = {SENDER: "sends late", RECEIVER: "is slow to receive", LATE: "comes late"}
    return f"{who[0].upper()}{who[1:]} {does[culprit.kind]}."


def _named(numbers: Sequence[int], ranks: Sequence[RankResult], whole_host: bool) -> str:
    first = ranks[numbers[0]]
    if whole_host:
        listed = ", ".join(str(ranks[number].rank) for number in numbers[:_FEW])
        more = ", ..." if len(numbers) > _FEW else ""
        return f"host {first.host} (ranks {listed}{more})"
    parts = [f"GPU {first.place.gpu}"] if first.place.gpu else []
    if first.place.nics:
        parts.append(f"NIC {', '.join(first.place.nics)}")
    where = f" ({', '.join(parts)})" if parts else ""
    return f"rank {first.rank} on {first.host}{where}"


def _evidence(culprit: Culprit) -> str:
    if culprit.kind == LATE:
        excess, usual = culprit.excess_us["barrier"], culprit.usual_us["barrier"]
        return (
            f"It came to the barriers {excess:,.1f} us later than usual ({usual:,.1f} us), median."
        )
    parts = [
        f"{excess:,.1f} us above the usual {culprit.usual_us[name]:,.1f} us in {name}"
        for name, excess in culprit.excess_us.items()
    ]
    if culprit.kind == RECEIVER:
        return f"It waits for all others: {'; '.join(parts)} (median)."
    if culprit.kind == LINK:
        return f"Waits across it: {'; '.join(parts)} (median)."
    return f"Others wait for it: {'; '.join(parts)} (median)."
