"""What every rank must get of a high-throughput dispatch and combine, token by token.

Written from the definition of the calls; nothing here uses ep_runtime.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Case:
    size: int
    hidden: int
    topk: int
    experts: int
    tokens: tuple[int, ...]  # of each rank
    num_sms: int = 4
    alignment: int = 1
    internode: bool = False
    node: int = 8  # ranks of a node
    form: str = "bf16"
    spare: int = -1  # rows above what arrives, as num_worst_tokens; -1: not given

    @property
    def local(self) -> int:
        return self.experts // self.size

    @property
    def nodes(self) -> int:
        return -(-self.size // self.node)


@dataclass(frozen=True)
class Given:
    """Of one rank: BF16 values as float32 [T, H], int64 and float32 [T, K]."""

    x: np.ndarray
    topk_idx: np.ndarray
    topk_weights: np.ndarray


def make_given(case: Case, seed: int, rank: int) -> Given:
    draw = np.random.default_rng([seed, rank, 7])
    tokens = case.tokens[rank]
    x = draw.integers(-127, 128, size=(tokens, case.hidden)).astype(np.float32) / 16
    topk_idx = np.full((tokens, case.topk), -1, dtype=np.int64)
    for token in range(tokens):
        style = draw.integers(4)
        if style == 0:  # all on one rank
            first = draw.integers(case.size) * case.local
            topk_idx[token] = draw.integers(first, first + case.local, size=case.topk)
        elif style == 1:  # anything, repeated experts as well
            topk_idx[token] = draw.integers(-1, case.experts, size=case.topk)
        elif style == 2:
            chosen = draw.permutation(case.experts)[: case.topk]
            topk_idx[token, : chosen.size] = chosen
    weights = draw.random((tokens, case.topk)).astype(np.float32)
    return Given(x, topk_idx, weights)


def ranks_of(case: Case, choices: np.ndarray) -> set[int]:
    return {int(expert) // case.local for expert in choices if expert >= 0}


def layout_of(case: Case, given: Given) -> dict[str, np.ndarray]:
    per_rank = np.zeros(case.size, np.int32)
    per_node = np.zeros(case.nodes, np.int32)
    per_expert = np.zeros(case.experts, np.int32)
    in_rank = np.zeros((len(given.x), case.size), bool)
    for token, choices in enumerate(given.topk_idx):
        ranks = ranks_of(case, choices)
        for rank in ranks:
            per_rank[rank] += 1
            in_rank[token, rank] = True
        for node in {rank // case.node for rank in ranks}:
            per_node[node] += 1
        for expert in choices:
            if expert >= 0:
                per_expert[expert] += 1
    return {"rank": per_rank, "node": per_node, "expert": per_expert, "in_rank": in_rank}


@dataclass(frozen=True)
class Received:
    """Rows of one rank in order: (source, token) pairs, and what comes with them."""

    origin: list[tuple[int, int]]
    topk_idx: np.ndarray
    topk_weights: np.ndarray
    per_expert: list[int]


def received_by(case: Case, everyone: list[Given], rank: int) -> Received:
    origin, indices, weights = [], [], []
    counts = [0] * case.local
    for source, given in enumerate(everyone):
        for token, choices in enumerate(given.topk_idx):
            here = [e >= 0 and e // case.local == rank for e in choices]
            if not any(here):
                continue
            origin.append((source, token))
            indices.append([e % case.local if own else -1 for e, own in zip(choices, here)])
            weights.append([w if own else 0 for w, own in zip(given.topk_weights[token], here)])
            for expert, own in zip(choices, here):
                if own:
                    counts[expert % case.local] += 1
    aligned = [-(-count // case.alignment) * case.alignment for count in counts]
    return Received(
        origin,
        np.array(indices, np.int64).reshape(-1, case.topk),
        np.array(weights, np.float32).reshape(-1, case.topk),
        aligned,
    )


def channel_of(case: Case, rank: int, token: int) -> int:
    channels = case.num_sms // 2
    share = -(-case.tokens[rank] // channels)
    return token // share


def handle_of(case: Case, everyone: list[Given], rank: int) -> dict[int, np.ndarray]:
    """The fields of the handle by position: those with one right value."""
    size, channels = case.size, case.num_sms // 2
    to = [[ranks_of(case, choices) for choices in given.topk_idx] for given in everyone]
    sent = np.zeros((size, size, channels), np.int32)  # source, destination, channel
    to_node = np.zeros((case.nodes, channels), np.int32)
    for source in range(size):
        for token, ranks in enumerate(to[source]):
            channel = channel_of(case, source, token)
            for target in ranks:
                sent[source, target, channel] += 1
            if source == rank:
                for node in {target // case.node for target in ranks}:
                    to_node[node, channel] += 1
    mine = received_by(case, everyone, rank)
    in_rank = layout_of(case, everyone[rank])["in_rank"]
    ends = sent[rank].cumsum(1)
    before = sent[:, rank].cumsum(1) - sent[:, rank]
    from_rank = sent[:, rank].sum(1)
    if not case.internode:
        head = np.full(in_rank.shape, -1, np.int32)
        seen: dict[tuple[int, int], int] = {}
        for token, ranks in enumerate(to[rank]):
            for target in ranks:
                key = (channel_of(case, rank, token), target)
                head[token, target] = seen.get(key, 0)
                seen[key] = seen.get(key, 0) + 1
        tokens = np.array([token for _, token in mine.origin], np.int32)
        prefix = sent.sum(2).cumsum(0)
        return {0: prefix, 1: ends, 2: before, 3: tokens, 4: in_rank, 5: head}
    first = (from_rank.cumsum() - from_rank)[:, None]
    meta = np.zeros((len(mine.origin), 2), np.int32)
    my_node = rank // case.node
    for row, (source, token) in enumerate(mine.origin):
        bits = sum(1 << (t % case.node) for t in to[source][token] if t // case.node == my_node)
        meta[row] = source // case.node, bits
    return {
        0: in_rank,
        1: to_node.cumsum(1),
        2: ends,
        5: before + first,
        6: from_rank.cumsum(),
        7: meta.view(np.uint8).reshape(-1, 8),
    }


def combined(
    case: Case, given: Given, answer: np.ndarray, biases: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Exact sums in float64: each rank that got a token answers ``answer[rank] * token``."""
    total = np.zeros(given.x.shape)
    for bias in biases:
        total += bias
    weights = np.zeros(given.topk_weights.shape)
    for token, choices in enumerate(given.topk_idx):
        for rank in ranks_of(case, choices):
            total[token] += given.x[token].astype(np.float64) * answer[rank]
        weights[token] = np.where(choices >= 0, given.topk_weights[token], 0)
    return total, weights
