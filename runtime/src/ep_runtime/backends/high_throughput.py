"""High-throughput dispatch and combine in plain torch, rows carried by torch.distributed.

All backends use this until there are kernels for it: work is done on the CPU by the time a call
returns, and GPU tensors are copied there and back.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ep_runtime.backends.exchange import Call, Exchange, bytes_of, transport_report
from ep_runtime.backends.routing import check_experts, columns_as
from ep_runtime.backends.token_handle import (
    Arrival,
    ReadHandle,
    SendPlan,
    TokenHandle,
    make_internode,
    make_intranode,
)
from ep_runtime.checks import require
from ep_runtime.config import RANKS_PER_NODE, nodes_of
from ep_runtime.errors import EPError

if TYPE_CHECKING:
    from ep_runtime.group import RankGroup

_log = logging.getLogger(__name__)


def token_layout(
    topk_idx: torch.Tensor, num_experts: int, rank: int, size: int
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor]:
    """Count the tokens of ``topk_idx`` int64 [T, K] by rank, node and expert, on its device.

    Returns int32 [R], int32 [nodes] (None for one node), int32 [E] and bool [T, R]. A token counts
    once for a rank or node, however many of its experts are there.
    """
    check_experts(topk_idx, num_experts, rank)
    none = topk_idx < 0
    local = num_experts // size
    owner = torch.where(none, size, topk_idx.div(local, rounding_mode="floor"))
    in_rank = _marks(owner, size)
    in_node = None
    if size > RANKS_PER_NODE:
        nodes = nodes_of(size)
        in_node = _marks(torch.where(none, nodes, owner // RANKS_PER_NODE), nodes)
    chosen = torch.where(none, num_experts, topk_idx).flatten()
    per_expert = chosen.new_zeros(num_experts + 1, dtype=torch.int32)
    per_expert.scatter_add_(0, chosen, torch.ones_like(chosen, dtype=torch.int32))
    return (
        in_rank.sum(0, dtype=torch.int32),
        None if in_node is None else in_node.sum(0, dtype=torch.int32),
        per_expert[:num_experts].contiguous(),
        in_rank,
    )


def _marks(column: torch.Tensor, columns: int) -> torch.Tensor:
    """Mark in bool [T, columns] what ``column`` [T, K] names; ``columns`` itself names nothing."""
    marks = torch.zeros((column.shape[0], columns + 1), dtype=torch.bool, device=column.device)
    return marks.scatter_(1, column, True)[:, :columns].contiguous()


@dataclass(frozen=True)
class DispatchTokens:
    """Checked arguments of a dispatch. T tokens, H channels, S scales and K selections a token.

    ``x`` [T, H]; ``scales`` [T, S] or None; ``topk_idx`` int64 and ``topk_weights`` float32
    [T, K], or both None; ``in_rank`` bool [T, R]; ``per_expert`` int32 [E]. ``internode`` is the
    kind of handle to make. In place of the last three ``handle`` may be that of another dispatch.
    """

    x: torch.Tensor
    scales: torch.Tensor | None
    topk_idx: torch.Tensor | None
    topk_weights: torch.Tensor | None
    in_rank: torch.Tensor | None
    per_expert: torch.Tensor | None
    handle: TokenHandle | None
    internode: bool
    num_channels: int
    num_worst_tokens: int


@dataclass(frozen=True)
class DispatchedTokens:
    """What a dispatch gives: ``x`` [rows, H] and so on, and rows for each local expert."""

    x: torch.Tensor
    scales: torch.Tensor | None
    topk_idx: torch.Tensor | None
    topk_weights: torch.Tensor | None
    per_expert: list[int]
    handle: TokenHandle


@dataclass(frozen=True)
class CombineTokens:
    """Checked arguments of a combine: ``x`` bfloat16 [rows, H], weights float32 [rows, K]."""

    x: torch.Tensor
    topk_weights: torch.Tensor | None
    biases: tuple[torch.Tensor, ...]
    handle: TokenHandle
    num_channels: int


class HighThroughput:
    """The calls of one buffer. Its group is made by the first of them, which are all collective."""

    def __init__(self, ranks: RankGroup, timeout_us: int) -> None:
        self.rank, self.size = ranks.rank, ranks.size
        self._ranks = ranks
        self._timeout_us = timeout_us
        self._exchange: Exchange | None = None

    def dispatch(self, given: DispatchTokens) -> DispatchedTokens:
        """Send each token once to each rank that has one of its experts."""
        exchange = self._open(given.x.device)
        known = None
        if given.handle is not None:
            known = ReadHandle.of(given.handle, self.rank, self.size, given.num_channels)
            require(
                known.in_rank.shape[0] == given.x.shape[0],
                f"x must have the {known.in_rank.shape[0]} tokens of the handle's dispatch, got "
                f"{given.x.shape[0]}.",
            )
            plan = SendPlan.of(known.in_rank, given.num_channels)
        else:
            assert given.in_rank is not None
            plan = SendPlan.of(given.in_rank.cpu(), given.num_channels)
        call = self._dispatch_call(given)
        payload = _Payload.of(given, self.rank, self.size)
        parts = {}
        for peer in range(self.size):
            tokens = plan.tokens_to(peer)
            about = self._about(given, plan, peer, tokens) if known is None else _NOTHING
            parts[peer] = (bytes_of(about).view(-1), payload.rows(tokens, peer).view(-1))
        sequence = exchange.send(call, parts, self._timeout_us)
        arrived = dict(exchange.receive(sequence, call, self._timeout_us))
        rows = torch.cat([arrived[peer][1].view(-1, payload.width) for peer in range(self.size)])
        if known is not None:
            require(
                rows.shape[0] == sum(known.received),
                f"rank {self.rank}: {rows.shape[0]} rows arrived, but the handle is of a dispatch "
                f"with {sum(known.received)}: all ranks must give handles of the same dispatch.",
            )
            assert given.handle is not None
            return payload.outputs(rows, known.rows, [], given.handle)
        return self._finish_dispatch(given, plan, payload, rows, [arrived[p][0] for p in arrived])

    def combine(self, given: CombineTokens) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Bring rows back to their tokens and add them up: bfloat16 [T, H], float32 [T, K]."""
        exchange = self._open(given.x.device)
        known = ReadHandle.of(given.handle, self.rank, self.size, given.num_channels)
        x, weights = given.x, given.topk_weights
        require(
            x.shape[0] == known.rows,
            f"x must have the {known.rows} rows that the dispatch gave, got {x.shape[0]}.",
        )
        hidden, topk = x.shape[1], 0 if weights is None else weights.shape[1]
        content = bytes_of(x.cpu())
        if weights is not None:
            content = torch.cat((content, bytes_of(weights.cpu())), dim=1)
        call = Call("combine", 2, {"hidden": hidden, "num_topk": topk})
        parts, first = {}, 0
        for peer, count in enumerate(known.received):
            parts[peer] = (content[first : first + count].reshape(-1),)
            first += count
        sequence = exchange.send(call, parts, self._timeout_us)
        tokens = known.in_rank.shape[0]
        total = torch.zeros((tokens, hidden), dtype=torch.float32)
        for bias in given.biases:
            total += bias.cpu().float()
        total_weights = torch.zeros((tokens, topk), dtype=torch.float32)
        for peer, arrived in exchange.receive(sequence, call, self._timeout_us):
            rows = arrived[0].view(-1, content.shape[1])
            targets = known.in_rank[:, peer].nonzero().squeeze(1)
            self._require_rows(peer, rows.shape[0], targets.numel())
            total[targets] += columns_as(rows, 0, 2 * hidden, torch.bfloat16).float()
            total_weights[targets] += columns_as(rows, 2 * hidden, None, torch.float32)
        combined = total.to(torch.bfloat16).to(x.device)
        return combined, None if weights is None else total_weights.to(x.device)

    def transport_report(self) -> dict[str, Any]:
        """Name the path to each rank."""
        return transport_report(self.rank, self.size)

    def close(self) -> None:
        """Close the group once peers have fetched what they were sent."""
        if self._exchange is not None:
            self._exchange.close()

    def _open(self, device: torch.device) -> Exchange:
        if self._exchange is None:
            self._exchange = Exchange(self._ranks, mask_lost=False)
            if device.type == "cuda" and self.rank == 0:
                _log.warning(
                    "dispatch and combine of the high-throughput mode have no kernels yet: rows "
                    "go through the CPU and gloo."
                )
        return self._exchange

    def _dispatch_call(self, given: DispatchTokens) -> Call:
        arguments = {
            "hidden": given.x.shape[1],
            "bytes per channel": given.x.element_size(),
            "scales per token": 0 if given.scales is None else given.scales.shape[1],
            "num_topk": 0 if given.topk_idx is None else given.topk_idx.shape[1],
            "num_experts": 0 if given.per_expert is None else given.per_expert.shape[0],
            "num_sms": 2 * given.num_channels,
            "kind of handle": int(given.internode),
        }
        return Call("dispatch", 1, arguments)

    def _about(
        self, given: DispatchTokens, plan: SendPlan, peer: int, tokens: torch.Tensor
    ) -> torch.Tensor:
        """Tell ``peer`` what it needs beside the rows, as ``_finish_dispatch`` reads it; int32."""
        assert given.per_expert is not None
        local = given.per_expert.shape[0] // self.size
        tags = plan.node_bits(peer // RANKS_PER_NODE)[tokens] if given.internode else tokens
        return torch.cat(
            (
                plan.ends[:, -1],
                plan.starts[peer],
                given.per_expert.cpu()[peer * local : (peer + 1) * local],
                tags.to(torch.int32),
            )
        )

    def _finish_dispatch(
        self,
        given: DispatchTokens,
        plan: SendPlan,
        payload: _Payload,
        rows: torch.Tensor,
        abouts: list[torch.Tensor],
    ) -> DispatchedTokens:
        assert given.per_expert is not None
        local = given.per_expert.shape[0] // self.size
        sizes = [self.size, given.num_channels, local]
        split = []
        for about in abouts:
            numbers = about.view(torch.int32)
            split.append(torch.split(numbers, [*sizes, numbers.numel() - sum(sizes)]))
        sent, starts, per_expert, tags = (list(column) for column in zip(*split))
        arrival = Arrival(torch.stack(sent), torch.stack(starts), torch.cat(tags))
        worst, count = given.num_worst_tokens, rows.shape[0]
        require(
            worst == 0 or count <= worst,
            f"rank {self.rank}: {count} tokens arrived, more than num_worst_tokens={worst}.",
        )
        capacity = worst or count
        device = given.x.device
        if given.internode:
            handle = make_internode(plan, arrival, self.rank, capacity, device)
        else:
            handle = make_intranode(plan, arrival, capacity, device)
        counts = [] if worst else torch.stack(per_expert).sum(0).tolist()
        return payload.outputs(rows, capacity, counts, handle)

    def _require_rows(self, peer: int, got: int, wanted: int) -> None:
        if got != wanted:
            raise EPError(
                f"rank {self.rank}: combine got {got} rows from rank {peer} for {wanted} tokens: "
                "all ranks must give handles of the same dispatch.",
                rank=self.rank,
                peer=peer,
                phase="combine receive",
            )


_NOTHING = torch.empty(0, dtype=torch.int32)


@dataclass(frozen=True)
class _Payload:
    """A token's bytes on the way: its channels, top-k entries, weights, then scales.

    In this order each is aligned to its element size, since channels fill whole 16 bytes.
    """

    given: DispatchTokens
    x: torch.Tensor
    topk_idx: torch.Tensor | None
    topk_weights: torch.Tensor | None
    scales: torch.Tensor | None
    local_experts: int

    @classmethod
    def of(cls, given: DispatchTokens, rank: int, size: int) -> _Payload:
        """Bring the tensors to the CPU."""
        topk_idx, weights = given.topk_idx, given.topk_weights
        local = 0
        if topk_idx is not None:
            assert given.per_expert is not None
            experts = given.per_expert.shape[0]
            topk_idx = topk_idx.cpu()
            check_experts(topk_idx, experts, rank)
            local = experts // size
        return cls(
            given,
            bytes_of(given.x.cpu()),
            topk_idx,
            None if weights is None else weights.cpu(),
            None if given.scales is None else bytes_of(given.scales.cpu().contiguous()),
            local,
        )

    @property
    def width(self) -> int:
        """Bytes of a token."""
        topk = 0 if self.topk_idx is None else 12 * self.topk_idx.shape[1]
        return self.x.shape[1] + topk + (0 if self.scales is None else self.scales.shape[1])

    def rows(self, tokens: torch.Tensor, peer: int) -> torch.Tensor:
        """uint8 [n, width] of ``tokens`` for ``peer``: experts as it numbers them, -1 for others'.

        Weights of others' experts are 0.
        """
        columns = [self.x[tokens]]
        if self.topk_idx is not None and self.topk_weights is not None:
            own = self.topk_idx[tokens] - peer * self.local_experts
            foreign = (own < 0) | (own >= self.local_experts)
            columns.append(bytes_of(own.masked_fill(foreign, -1)))
            columns.append(bytes_of(self.topk_weights[tokens].masked_fill(foreign, 0)))
        if self.scales is not None:
            columns.append(self.scales[tokens])
        return torch.cat(columns, dim=1)

    def outputs(
        self, rows: torch.Tensor, capacity: int, per_expert: list[int], handle: TokenHandle
    ) -> DispatchedTokens:
        """Take ``rows`` apart into tensors of ``capacity`` rows where the caller's tensors are."""
        given, device = self.given, self.given.x.device
        begin = self.x.shape[1]
        x = _grown(columns_as(rows, 0, begin, given.x.dtype), capacity, None)
        topk_idx = weights = scales = None
        if self.topk_idx is not None:
            topk = self.topk_idx.shape[1]
            middle, end = begin + 8 * topk, begin + 12 * topk
            topk_idx = _grown(columns_as(rows, begin, middle, torch.int64), capacity, -1)
            weights = _grown(columns_as(rows, middle, end, torch.float32), capacity, 0)
            begin = end
        if given.scales is not None:
            scales = _grown(columns_as(rows, begin, None, given.scales.dtype), capacity, None)
        return DispatchedTokens(
            x.to(device),
            None if scales is None else scales.to(device),
            None if topk_idx is None else topk_idx.to(device),
            None if weights is None else weights.to(device),
            per_expert,
            handle,
        )


def _grown(rows: torch.Tensor, capacity: int, fill: int | None) -> torch.Tensor:
    """``rows`` [n, ...] with more rows behind, up to ``capacity``: of ``fill``, or undefined."""
    if rows.shape[0] == capacity:
        return rows
    grown = torch.empty((capacity, rows.shape[1]), dtype=rows.dtype)
    if fill is not None:
        grown.fill_(fill)
    bytes_of(grown)[: rows.shape[0]] = bytes_of(rows)
    return grown
