"""What really goes from rank to rank in one call, as the backends' protocols have it.

A dispatch sends a row once to each rank that holds any of the token's experts; a combine sends one
row for each selection back. What stays on the rank is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ep_runtime import _core
from ep_runtime.bench.options import HIDDEN_MULTIPLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ep_runtime.bench.options import Parameters

_FLAG_BYTES = 8
_INT32_BYTES = 4
_LOGFMT_BITS = 10
# Of a group of 128 channels, beside its codes.
_RANGE_BYTES = 8
_EXTREMES_BYTES = 5


@dataclass(frozen=True)
class Sent:
    """What one rank's tokens select: rows [R] for each rank, selections [E] of each expert."""

    rows: NDArray[np.int64]
    selections: NDArray[np.int64]

    @classmethod
    def of(cls, topk_idx: NDArray[np.int64], ranks: int, experts: int) -> Sent:
        """Count ``topk_idx`` [T, K], -1 selecting nothing."""
        chosen = topk_idx[topk_idx >= 0]
        owners = np.where(topk_idx >= 0, topk_idx // (experts // ranks), -1)
        distinct = np.zeros((len(topk_idx), ranks + 1), dtype=bool)
        np.put_along_axis(distinct, owners, True, axis=1)  # -1 is the column beyond the ranks
        return cls(distinct[:, :ranks].sum(axis=0), np.bincount(chosen, minlength=experts))


@dataclass(frozen=True)
class Traffic:
    """Bytes sent or received in one call, whichever is more, by rank [R]."""

    same_host: NDArray[np.float64]
    other_hosts: NDArray[np.float64]


def row_bytes(backend: str, parameters: Parameters, ranks: int) -> dict[str, tuple[float, float]]:
    """Bytes of a row within a host and between hosts; a combine's row is one selection's.

    Between hosts the device backends put whole rows, LogFMT or not.
    """
    p = parameters
    groups = p.hidden // HIDDEN_MULTIPLE
    bf16 = 2 * p.hidden
    payload = p.hidden + _INT32_BYTES * groups if p.use_fp8 else bf16
    if backend == "reference":
        # A selection's entry is three words in a combine, and four in a dispatch: see ``traffic``.
        back = 3 * _INT32_BYTES + bf16 + (groups * _EXTREMES_BYTES if p.use_logfmt else 0)
        return {"dispatch": (payload, payload), "combine": (back, back)}
    layout = _core.low_latency_layout(p.num_tokens, p.hidden, ranks, p.num_experts)
    there = layout.payload_offset + payload
    near = bf16
    if p.use_logfmt:
        near = p.hidden * _LOGFMT_BITS // 8 + groups * _RANGE_BYTES
    return {
        "dispatch": (there, there),
        "combine": (near + _FLAG_BYTES, bf16 + _FLAG_BYTES),
    }


def _entry_bytes(backend: str) -> int:
    """Bytes of a selection in a dispatch beside the row; device rows have room for them."""
    return 4 * _INT32_BYTES if backend == "reference" else 0


def traffic(
    backend: str, parameters: Parameters, hosts: Sequence[str], sent: Sequence[Sent]
) -> dict[str, Traffic]:
    """Bytes of dispatch, combine and both by rank, given each rank's host and ``Sent``."""
    ranks = len(hosts)
    rows = np.array([item.rows for item in sent], dtype=np.float64)
    selections = np.array([item.selections for item in sent], dtype=np.float64)
    selections = selections.reshape(ranks, ranks, -1).sum(axis=2)
    sizes = row_bytes(backend, parameters, ranks)
    same = np.equal.outer(np.array(hosts), np.array(hosts))
    near, far = same & ~np.eye(ranks, dtype=bool), ~same

    def busiest(links: NDArray[np.bool_], which: int) -> dict[str, NDArray[np.float64]]:
        there = rows * sizes["dispatch"][which] + selections * _entry_bytes(backend)
        back = selections.T * sizes["combine"][which]
        moved = {"dispatch": there * links, "combine": back * links}
        most = {
            name: np.maximum(matrix.sum(axis=1), matrix.sum(axis=0))
            for name, matrix in moved.items()
        }
        return {**most, "pair": most["dispatch"] + most["combine"]}

    inside, outside = busiest(near, 0), busiest(far, 1)
    return {name: Traffic(inside[name], outside[name]) for name in inside}


def imbalance(sent: Sequence[Sent]) -> dict[str, float]:
    """How many times the mean the busiest rank and the busiest expert get."""
    experts = np.sum([item.selections for item in sent], axis=0)
    by_rank = experts.reshape(len(sent), -1).sum(axis=1)
    return {
        name: round(float(values.max() / values.mean()), 3) if values.any() else 1.0
        for name, values in (("by_rank", by_rank), ("by_expert", experts))
    }
