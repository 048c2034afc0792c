"""What dispatch and combine should cost at sizes that nobody here has: arithmetic, checked.

An operation takes a fixed time plus the time of the busiest link. Bytes and messages follow from
the protocol and from how many distinct ranks and nodes the selections of a token fall on. The
constants are measured, or fitted to published figures; ``published_errors`` says how far off the
model is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

from ep_runtime import _core

# One H200, this runtime (docs/performance.md): the kernels' time without wire, at 8 tokens.
FIXED_NVLINK_US = {"dispatch": 8.1, "combine": 6.3}
# Device copy, read + written, of the same run; passes over the bytes that the kernels make there.
COPY_BYTES_PER_US = 4.07e6
PASSES = {"dispatch": 1, "combine": 3}
# DeepEP's published RDMA figures, EP 16 to 256: this, plus bytes at this share of the NIC's rate.
FIXED_RDMA_US = 35.0
NIC_SHARE = 0.92
# What stores over NVLink reach of the wire's rate, by published all-to-all kernels.
NVLINK_SHARE = 0.8
# An extra hop over NVLink at the receiving node: launch of the forwarders, and flags.
FORWARD_US = 5.0

ROW_HEADER_BYTES = 16
ROUTE_ENTRY_BYTES = 8
MAX_LAYOUT_RANKS = 1024


@dataclass(frozen=True)
class Fleet:
    """Shape of the model and of the machines. Rates in GB/s in one direction, per GPU."""

    tokens: int = 128
    hidden: int = 7168
    experts: int = 256
    topk: int = 8
    gpus_per_node: int = 8
    nvlink_gbps: float = 450.0
    nic_gbps: float = 50.0

    def experts_at(self, ranks: int) -> int:
        """Experts over all ranks: at least one a rank, as with redundant experts."""
        return max(self.experts, ranks)


@dataclass(frozen=True)
class Traffic:
    """What one rank sends in one operation, the share that stays on its GPU left out."""

    nvlink_bytes: float
    nic_bytes: float
    nic_messages: float


@dataclass(frozen=True)
class Prediction:
    """One EP size. Times in microseconds; memory in bytes of symmetric memory per rank."""

    ranks: int
    dispatch: Traffic
    combine: Traffic
    dispatch_us: float
    combine_us: float
    node_dedup_dispatch_us: float
    node_dedup_combine_us: float
    queue_pairs: int
    memory_bytes: int
    memory_is_extrapolated: bool

    @property
    def node_dedup_pays(self) -> bool:
        """Whether sending a row once per node saves more than its extra hop costs."""
        return self.node_dedup_dispatch_us < self.dispatch_us


def distinct_groups(experts: int, topk: int, groups: int) -> float:
    """Expect so many of ``groups`` equal parts of the experts to hold a token's selections.

    Selections are drawn without replacement, uniformly.
    """
    outside = experts - experts // groups
    return groups * (1.0 - comb(outside, topk) / comb(experts, topk))


def row_bytes(fleet: Fleet, operation: str) -> int:
    """Bytes on the wire of one row: FP8 with its scales and header, or BF16."""
    if operation == "combine":
        return 2 * fleet.hidden
    return ROW_HEADER_BYTES + ROUTE_ENTRY_BYTES * 32 + fleet.hidden + fleet.hidden // 32


def traffic(fleet: Fleet, ranks: int, operation: str) -> Traffic:
    """Rows that leave a rank: once per rank in a dispatch, once per selection in a combine."""
    experts = fleet.experts_at(ranks)
    copies = distinct_groups(experts, fleet.topk, ranks)
    if operation == "combine":
        copies = float(fleet.topk)
    inside = min(fleet.gpus_per_node, ranks)
    size = fleet.tokens * row_bytes(fleet, operation)
    nic_copies = copies * (ranks - inside) / ranks
    return Traffic(
        nvlink_bytes=copies * (inside - 1) / ranks * size,
        nic_bytes=nic_copies * size,
        nic_messages=nic_copies * fleet.tokens,
    )


def _time(fleet: Fleet, moved: Traffic, operation: str) -> float:
    local = PASSES[operation] * fleet.tokens * fleet.topk * row_bytes(fleet, operation)
    on_gpu = FIXED_NVLINK_US[operation] + local / COPY_BYTES_PER_US
    nvlink = moved.nvlink_bytes / (fleet.nvlink_gbps * NVLINK_SHARE * 1e3)
    if not moved.nic_bytes:
        return on_gpu + nvlink
    nic = FIXED_RDMA_US + moved.nic_bytes / (fleet.nic_gbps * NIC_SHARE * 1e3)
    return max(on_gpu + nvlink, nic)


def with_node_dedup(fleet: Fleet, ranks: int, operation: str) -> Traffic:
    """Send one copy per node over the NIC and forward the rest over NVLink there.

    For the combine that means partial sums by node, which the API allows only where the weights
    travel with the dispatch.
    """
    nodes = max(1, ranks // fleet.gpus_per_node)
    direct = traffic(fleet, ranks, operation)
    if nodes == 1:
        return direct
    experts = fleet.experts_at(ranks)
    size = fleet.tokens * row_bytes(fleet, operation)
    other_nodes = distinct_groups(experts, fleet.topk, nodes) * (nodes - 1) / nodes
    copies = distinct_groups(experts, fleet.topk, ranks)
    forwarded = copies * (nodes - 1) / nodes * (fleet.gpus_per_node - 1) / fleet.gpus_per_node
    return Traffic(
        nvlink_bytes=direct.nvlink_bytes + forwarded * size,
        nic_bytes=other_nodes * size,
        nic_messages=other_nodes * fleet.tokens,
    )


def _memory(fleet: Fleet, ranks: int) -> tuple[int, bool]:
    """Symmetric bytes with the mirror that rows for the NIC are built in; True if extrapolated."""

    def laid_out(count: int) -> int:
        experts = fleet.experts_at(count)
        return _core.low_latency_layout(fleet.tokens, fleet.hidden, count, experts).total_bytes

    copies = 1 if ranks <= fleet.gpus_per_node else 2
    if ranks <= MAX_LAYOUT_RANKS:
        return copies * laid_out(ranks), False
    whole, half = laid_out(MAX_LAYOUT_RANKS), laid_out(MAX_LAYOUT_RANKS // 2)
    per_rank = (whole - half) / (MAX_LAYOUT_RANKS // 2)
    return copies * round(whole + (ranks - MAX_LAYOUT_RANKS) * per_rank), True


def predict(fleet: Fleet, ranks: int) -> Prediction:
    """Predict one EP size; ``ranks`` must divide the experts, or be more than them."""
    if ranks < 1 or fleet.experts_at(ranks) % ranks:
        raise ValueError(
            f"--ep {ranks} must divide the {fleet.experts_at(ranks)} experts, or be more than them"
        )
    if ranks > fleet.gpus_per_node and ranks % fleet.gpus_per_node:
        raise ValueError(f"--ep {ranks} must be whole nodes of {fleet.gpus_per_node} GPUs")
    dispatch, combine = (traffic(fleet, ranks, kind) for kind in ("dispatch", "combine"))
    deduped = {kind: with_node_dedup(fleet, ranks, kind) for kind in ("dispatch", "combine")}
    hop = FORWARD_US if ranks > fleet.gpus_per_node else 0.0
    memory, extrapolated = _memory(fleet, ranks)
    remote = max(0, ranks - fleet.gpus_per_node)
    return Prediction(
        ranks=ranks,
        dispatch=dispatch,
        combine=combine,
        dispatch_us=_time(fleet, dispatch, "dispatch"),
        combine_us=_time(fleet, combine, "combine"),
        node_dedup_dispatch_us=_time(fleet, deduped["dispatch"], "dispatch") + hop,
        node_dedup_combine_us=_time(fleet, deduped["combine"], "combine") + hop,
        queue_pairs=remote * (fleet.experts_at(ranks) // ranks),
        memory_bytes=memory,
        memory_is_extrapolated=extrapolated,
    )


@dataclass(frozen=True)
class Published:
    """A figure that others measured, in microseconds: 128 tokens, 7168, top-8 of 256, CX7."""

    who: str
    ranks: int
    operation: str
    measured_us: float


def _series(who: str, ranks: tuple[int, ...], dispatch: str, combine: str) -> list[Published]:
    return [
        Published(who, size, operation, float(value))
        for operation, values in (("dispatch", dispatch), ("combine", combine))
        for size, value in zip(ranks, values.split())
    ]


PUBLISHED = [
    *_series(
        "DeepEP V1, H800", (16, 32, 64, 128, 256), "118 155 173 192 194", "195 273 314 369 360"
    ),
    *_series("pplx-garden, H100", (16, 32, 64), "110.2 153.9 187.5", "185.5 266.3 309.1"),
]


def published_errors() -> list[tuple[Published, float]]:
    """Model each published figure by its authors' protocol; gives the relative error with it.

    They send a row per selection, with a 16-byte header, also in the dispatch.
    """
    fleet, found = Fleet(), []
    for entry in PUBLISHED:
        size = 2 * fleet.hidden
        if entry.operation == "dispatch":
            size = ROW_HEADER_BYTES + fleet.hidden + fleet.hidden // 32
        share = (entry.ranks - fleet.gpus_per_node) / entry.ranks
        sent = fleet.tokens * fleet.topk * share * size
        modelled = FIXED_RDMA_US + sent / (fleet.nic_gbps * NIC_SHARE * 1e3)
        found.append((entry, modelled / entry.measured_us - 1.0))
    return found
