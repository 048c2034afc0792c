"""What a high-throughput dispatch hands out for the calls that follow it: a plain tuple of tensors.

Its fields and their order are those of DeepEP V1, with R ranks, C channels, T tokens here and N
rows received. Within a node (``INTRANODE`` fields):

    rank_prefix_matrix          int32 [R, R]  tokens from ranks 0 to i for rank j
    channel_prefix_matrix       int32 [R, C]  tokens for rank i in channels 0 to c
    recv_channel_prefix_matrix  int32 [R, C]  tokens from rank i in the channels before c
    recv_src_idx                int32 [N]     a row's token on the rank it came from
    is_token_in_rank            bool [T, R]
    send_head                   int32 [T, R]  a token's place in its channel to rank i, -1 for none

Between nodes (``INTERNODE`` fields), with n nodes of 8 ranks:

    is_token_in_rank                 bool [T, R]
    rdma_channel_prefix_matrix       int32 [n, C]  tokens for node i in channels 0 to c
    gbl_channel_prefix_matrix        int32 [R, C]  tokens for rank i in channels 0 to c
    recv_rdma_channel_prefix_matrix  int32 [n, C]  zero: no rank forwards for another here
    recv_rdma_rank_prefix_sum        int32 [n]     zero
    recv_gbl_channel_prefix_matrix   int32 [R, C]  first row from rank i in channel c
    recv_gbl_rank_prefix_sum         int32 [R]     rows from ranks 0 to i
    recv_src_meta                    uint8 [N, 8]  int32 source node, int32 bits of ranks here
    send_rdma_head                   int32 [T, n]  -1
    send_nvl_head                    int32 [0, 8]  a row for each token forwarded
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ep_runtime.checks import require
from ep_runtime.config import RANKS_PER_NODE, nodes_of

if TYPE_CHECKING:
    from collections.abc import Sequence

INTRANODE, INTERNODE = 6, 10  # fields of the two kinds

TokenHandle = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class SendPlan:
    """Which of this rank's tokens go where, by channel; tensors on the CPU.

    ``in_rank`` bool [T, R]; ``ends`` and ``starts`` int32 [R, C]: tokens for a rank up to and with,
    and before, a channel; ``head`` int32 [T, R].
    """

    in_rank: torch.Tensor
    starts: torch.Tensor
    ends: torch.Tensor
    head: torch.Tensor

    @classmethod
    def of(cls, in_rank: torch.Tensor, num_channels: int) -> SendPlan:
        """Divide the tokens among channels, in equal and contiguous shares."""
        tokens, ranks = in_rank.shape
        share = max(1, -(-tokens // num_channels))
        channel = torch.arange(tokens) // share
        ones = in_rank.to(torch.int32)
        counts = torch.zeros((num_channels, ranks), dtype=torch.int32).index_add_(0, channel, ones)
        ends = counts.cumsum(0, dtype=torch.int32)
        starts = ends - counts
        place = ones.cumsum(0, dtype=torch.int32) - 1 - starts[channel]
        head = torch.where(in_rank, place, torch.full_like(place, -1))
        return cls(in_rank, starts.T.contiguous(), ends.T.contiguous(), head)

    def tokens_to(self, peer: int) -> torch.Tensor:
        """Tokens that go to ``peer``, rising; int64."""
        return self.in_rank[:, peer].nonzero().squeeze(1)

    def node_bits(self, node: int) -> torch.Tensor:
        """int32 [T]: which ranks of ``node`` each token goes to, lowest rank in the lowest bit."""
        ranks = self.in_rank[:, node * RANKS_PER_NODE : (node + 1) * RANKS_PER_NODE]
        weights = 1 << torch.arange(ranks.shape[1], dtype=torch.int32)
        return (ranks.to(torch.int32) * weights).sum(1, dtype=torch.int32)


@dataclass(frozen=True)
class Arrival:
    """What arrived, by source rank; tensors int32 on the CPU.

    ``sent`` [R, R]: tokens from rank i for rank j; ``starts`` [R, C]: as each source counts them;
    ``tags`` [N]: a row's token on its source, or between nodes its ranks as bits.
    """

    sent: torch.Tensor
    starts: torch.Tensor
    tags: torch.Tensor


def make_intranode(
    plan: SendPlan, arrival: Arrival, rows: int, device: torch.device
) -> TokenHandle:
    """Make the handle within a node; ``rows`` are those of the outputs, N or more."""
    src_idx = torch.full((rows,), -1, dtype=torch.int32)
    src_idx[: arrival.tags.numel()] = arrival.tags
    fields = (
        arrival.sent.cumsum(0, dtype=torch.int32),
        plan.ends,
        arrival.starts,
        src_idx,
        plan.in_rank,
        plan.head,
    )
    return tuple(field.to(device) for field in fields)


def make_internode(
    plan: SendPlan, arrival: Arrival, rank: int, rows: int, device: torch.device
) -> TokenHandle:
    """Make the handle between nodes; ``rows`` as within a node."""
    tokens, ranks = plan.in_rank.shape
    nodes, channels = nodes_of(ranks), plan.ends.shape[1]
    in_node = torch.stack([plan.node_bits(node) != 0 for node in range(nodes)], dim=1)
    received = arrival.sent[:, rank]
    before = received.cumsum(0, dtype=torch.int32) - received
    meta = torch.full((rows, 2), -1, dtype=torch.int32)
    source = torch.arange(ranks, dtype=torch.int32) // RANKS_PER_NODE
    meta[: arrival.tags.numel(), 0] = source.repeat_interleave(received)
    meta[: arrival.tags.numel(), 1] = arrival.tags
    fields = (
        plan.in_rank,
        SendPlan.of(in_node, channels).ends,
        plan.ends,
        torch.zeros((nodes, channels), dtype=torch.int32),
        torch.zeros((nodes,), dtype=torch.int32),
        arrival.starts + before.unsqueeze(1),
        received.cumsum(0, dtype=torch.int32),
        meta.view(-1).view(torch.uint8).view(rows, 8),
        torch.full((tokens, nodes), -1, dtype=torch.int32),
        torch.empty((0, RANKS_PER_NODE), dtype=torch.int32),
    )
    return tuple(field.to(device) for field in fields)


@dataclass(frozen=True)
class ReadHandle:
    """What the calls need of a handle: ``in_rank`` bool [T, R] on the CPU; rows from each rank."""

    in_rank: torch.Tensor
    received: Sequence[int]
    rows: int

    @classmethod
    def of(cls, handle: Any, rank: int, size: int, num_channels: int) -> ReadHandle:
        """Read either kind. RuntimeError for anything else, or another number of channels."""
        require(
            isinstance(handle, tuple) and len(handle) in (INTRANODE, INTERNODE),
            f"handle must be the {INTRANODE} or {INTERNODE} tensors that dispatch returned.",
        )
        if len(handle) == INTRANODE:
            ends, channels, in_rank, source = handle[0][:, rank], handle[1], handle[4], handle[3]
        else:
            ends, channels, in_rank, source = handle[6], handle[2], handle[0], handle[7]
        require(
            in_rank.shape[1] == size,
            f"handle is of a dispatch among {in_rank.shape[1]} ranks, but there are {size}.",
        )
        require(
            channels.shape[1] == num_channels,
            f"num_sms of config is {2 * num_channels}, but the dispatch that gave this handle had "
            f"{2 * channels.shape[1]}.",
        )
        received = torch.diff(ends.cpu(), prepend=torch.zeros(1, dtype=torch.int32))
        return cls(in_rank.cpu(), received.tolist(), source.shape[0])
