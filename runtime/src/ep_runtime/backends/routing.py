"""Who gets which row, and where it lands: the bookkeeping of the reference backend.

All tensors here are on the CPU. Rows of an expert are ordered by source rank, then token, then
place in the token's top-k row, so the same inputs give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ep_runtime import numerics
from ep_runtime.backends.base import DispatchRequest, DispatchResult

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Routes:
    """The selections of one rank's tokens, ordered by token, then top-k place; int64 [N] each."""

    token: torch.Tensor
    place: torch.Tensor
    expert: torch.Tensor

    def to_rank(self, peer: int, local_experts: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Pick what goes to ``peer``: its tokens, each once, and int32 entries [n, 4].

        An entry is (row among those tokens, token, top-k place, local expert).
        """
        mine = self.expert.div(local_experts, rounding_mode="floor") == peer
        token, place = self.token[mine], self.place[mine]
        tokens, row = torch.unique_consecutive(token, return_inverse=True)
        entries = torch.stack((row, token, place, self.expert[mine] - peer * local_experts), dim=1)
        return tokens, entries.to(torch.int32)


def check_experts(topk_idx: torch.Tensor, num_experts: int, rank: int) -> None:
    """RuntimeError naming the first entry that is neither an expert nor -1."""
    wrong = (topk_idx < -1) | (topk_idx >= num_experts)
    if bool(wrong.any()):
        token, place = wrong.nonzero()[0].tolist()
        raise RuntimeError(
            f"rank {rank}: topk_idx[{token}, {place}] is {int(topk_idx[token, place])}, but "
            f"experts are numbered 0 to {num_experts - 1}, and -1 selects none."
        )


def plan_routes(
    topk_idx: torch.Tensor, num_experts: int, max_tokens_per_rank: int, rank: int
) -> Routes:
    """Read ``topk_idx`` [T, K], -1 selecting nothing.

    Raises RuntimeError for an index that is no expert, and when repeated indices in a row would
    give one expert more than ``max_tokens_per_rank`` rows.
    """
    check_experts(topk_idx, num_experts, rank)
    token, place = (topk_idx >= 0).nonzero(as_tuple=True)
    expert = topk_idx[token, place]
    counts = torch.bincount(expert, minlength=num_experts)
    if int(counts.max()) > max_tokens_per_rank:
        raise RuntimeError(
            f"rank {rank}: topk_idx selects expert {int(counts.argmax())} {int(counts.max())} "
            f"times, more than num_max_dispatch_tokens_per_rank={max_tokens_per_rank}: rows of "
            "topk_idx repeat it."
        )
    return Routes(token, place, expert)


def columns_as(rows: torch.Tensor, begin: int, end: int | None, dtype: torch.dtype) -> torch.Tensor:
    """Bytes ``begin`` to ``end`` of each of the uint8 ``rows`` [N, B], as [N, ...] of ``dtype``."""
    part = rows[:, begin:end]
    width = part.shape[1] // dtype.itemsize
    # Flat first: a single row counts as contiguous whatever its stride, and then can't be viewed.
    return part.reshape(-1).view(dtype).view(part.shape[0], width)


@dataclass(frozen=True)
class ReceivedRows:
    """All rows that arrived, in order of source rank: int64 [N] each, and the payload [n, B]."""

    source: torch.Tensor
    row: torch.Tensor
    token: torch.Tensor
    place: torch.Tensor
    expert: torch.Tensor
    payload: torch.Tensor

    @classmethod
    def collect(
        cls, arrived: Iterable[tuple[int, tuple[torch.Tensor, ...]]], row_bytes: int
    ) -> ReceivedRows:
        """Read each source rank's parts: ``Routes.to_rank`` entries, and rows of ``row_bytes``."""
        sources = [torch.empty(0, dtype=torch.int64)]
        entries = [torch.empty((0, 4), dtype=torch.int64)]
        payloads = [torch.empty((0, row_bytes), dtype=torch.uint8)]
        first = 0
        for source, (entries_bytes, payload_bytes) in arrived:
            entry = entries_bytes.view(torch.int32).view(-1, 4).long()
            entry[:, 0] += first
            payload = payload_bytes.view(-1, row_bytes)
            first += payload.shape[0]
            sources.append(torch.full((entry.shape[0],), source))
            entries.append(entry)
            payloads.append(payload)
        row, token, place, expert = torch.cat(entries).unbind(1)
        return cls(torch.cat(sources), row, token, place, expert, torch.cat(payloads))


@dataclass(frozen=True)
class DispatchOutputs:
    """The tensors of a ``DispatchResult`` and what the combine needs beside them.

    ``places`` int32 [L, R*M]: each row's place in its token's top-k row. It is the second half of
    the storage whose first half is handed out as ``src_info``.
    """

    result: DispatchResult
    places: torch.Tensor

    @classmethod
    def allocate(
        cls, request: DispatchRequest, size: int, local_experts: int, device: torch.device
    ) -> DispatchOutputs:
        """Uninitialised outputs on ``device``, with the strides that callers expect."""
        hidden = request.x.shape[1]
        rows = size * request.max_tokens_per_rank
        kind = torch.float8_e4m3fn if request.use_fp8 else torch.bfloat16
        recv_x = torch.empty((local_experts, rows, hidden), dtype=kind, device=device)
        scales = None
        if request.use_fp8:
            kind, per_column = (torch.int32, 4) if request.use_ue8m0 else (torch.float32, 1)
            columns = hidden // numerics.GROUP // per_column
            scales = torch.empty((local_experts, columns, rows), dtype=kind, device=device)
            scales = scales.transpose(1, 2)
        src_info = torch.empty((2, local_experts, rows), dtype=torch.int32, device=device)
        return cls(
            DispatchResult(
                recv_x=recv_x,
                scales=scales,
                recv_count=torch.empty((local_experts,), dtype=torch.int32, device=device),
                src_info=src_info[0],
                layout_range=torch.empty((local_experts, size), dtype=torch.int64, device=device),
            ),
            src_info[1],
        )

    def fill(self, rows: ReceivedRows, request: DispatchRequest, hidden: int) -> None:
        """Put every row in its place."""
        result = self.result
        local_experts, size = result.layout_range.shape
        counts = torch.bincount(rows.expert * size + rows.source, minlength=local_experts * size)
        counts = counts.view(local_experts, size)
        ends = counts.cumsum(1)
        result.layout_range.copy_(((ends - counts) << 32) | counts)
        result.recv_count.copy_(ends[:, -1])

        order = torch.argsort(rows.expert, stable=True)
        expert = rows.expert[order]
        before = ends[:, -1].cumsum(0) - ends[:, -1]
        position = torch.arange(order.numel()) - before[expert]
        result.src_info[expert, position] = rows.token[order].to(torch.int32)
        self.places[expert, position] = rows.place[order].to(torch.int32)
        data_bytes = hidden * result.recv_x.element_size()
        data = columns_as(rows.payload, 0, data_bytes, torch.int64)
        # Whole rows, straight to where an expert's block begins: element-wise indexing is slow.
        of_expert = torch.split(rows.row[order], ends[:, -1].tolist())
        for block, chosen in zip(result.recv_x.view(torch.int64), of_expert):
            torch.index_select(data, 0, chosen, out=block[: chosen.numel()])
        if result.scales is not None:
            inverse = columns_as(rows.payload, data_bytes, None, torch.float32)
            values = numerics.pack_ue8m0(inverse) if request.use_ue8m0 else inverse
            result.scales[expert, position] = values[rows.row[order]]

    def copy_from(self, other: DispatchOutputs) -> None:
        """Copy all tensors, also between devices."""
        ours, theirs = self.result, other.result
        ours.recv_x.view(torch.uint8).copy_(theirs.recv_x.view(torch.uint8))
        if ours.scales is not None and theirs.scales is not None:
            ours.scales.copy_(theirs.scales)
        ours.recv_count.copy_(theirs.recv_count)
        ours.src_info.copy_(theirs.src_info)
        ours.layout_range.copy_(theirs.layout_range)
        self.places.copy_(other.places)


def top_k_places(src_info: torch.Tensor) -> torch.Tensor:
    """Find the ``places`` [L, R*M] that lie behind a ``src_info`` as a dispatch handed it out.

    Raises RuntimeError for a copy or a slice of it.
    """
    storage = src_info.untyped_storage().nbytes()
    if src_info.storage_offset() != 0 or storage != 2 * src_info.numel() * 4:
        raise RuntimeError(
            "src_info in the handle must be the tensor that low_latency_dispatch returned, not a "
            "copy or a slice: its storage also holds each row's place in the top-k row."
        )
    return src_info.as_strided(src_info.shape, src_info.stride(), src_info.numel())


def rows_by_choice(entries: torch.Tensor, topk_idx: torch.Tensor) -> torch.Tensor:
    """Find which row answers each entry of ``topk_idx`` [T, K]: int64 [T, K], -1 for none.

    ``entries`` int64 [N, 3] tell (token, top-k place, expert) of each row that came back; rows of
    another expert than ``topk_idx`` has there answer nothing.
    """
    token, place, expert = entries.unbind(1)
    number = torch.arange(token.numel())
    known = (token < topk_idx.shape[0]) & (place < topk_idx.shape[1])
    token, place, expert, number = token[known], place[known], expert[known], number[known]
    same = topk_idx[token, place] == expert
    row_of = torch.full(topk_idx.shape, -1, dtype=torch.int64)
    row_of[token[same], place[same]] = number[same]
    return row_of


def rows_of_rank(rows: torch.Tensor, layout: torch.Tensor) -> torch.Tensor:
    """Pick from ``rows`` [L, R*M, ...] those that ``layout`` [L] (begin << 32 | count) names."""
    begins, counts = (layout >> 32).tolist(), (layout & 0xFFFFFFFF).tolist()
    blocks = zip(rows, begins, counts)
    return torch.cat([block[begin : begin + count] for block, begin, count in blocks])
