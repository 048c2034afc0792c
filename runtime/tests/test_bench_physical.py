"""Bytes between ranks, on selections that can be counted by hand, and against brute force."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from bench_reports import PARAMETERS
from ep_runtime import _core
from ep_runtime.bench.physical import Sent, imbalance, row_bytes, traffic
from hypothesis import given
from hypothesis import strategies as st

# Four experts on two ranks.
SMALL = replace(PARAMETERS, num_tokens=3, num_experts=4, num_topk=2, hidden=128)
TOPK = [
    np.array([[0, 1], [1, 2], [2, 3]]),  # rank 0: token 0 stays, 1 goes to both, 2 goes over
    np.array([[0, -1], [2, 3], [3, -1]]),  # rank 1: token 0 goes over, the others stay
]
SENT = [Sent.of(topk, 2, 4) for topk in TOPK]


def test_a_row_goes_once_to_a_rank_and_a_selection_is_counted_each_time():
    assert [item.rows.tolist() for item in SENT] == [[2, 2], [1, 2]]
    assert [item.selections.tolist() for item in SENT] == [[1, 2, 2, 1], [1, 0, 1, 2]]


def test_rows_are_as_the_layout_has_them():
    layout = _core.low_latency_layout(3, 128, 2, 4)
    sizes = row_bytes("peer", SMALL, 2)
    assert sizes["dispatch"] == (layout.payload_offset + 128 + 4,) * 2
    assert sizes["combine"] == (256 + 8, 256 + 8)
    bf16 = row_bytes("peer", replace(SMALL, dtype="bf16"), 2)
    assert bf16["dispatch"][0] == layout.payload_offset + 256
    logfmt = row_bytes("nvshmem", replace(SMALL, combine_dtype="logfmt"), 2)
    assert logfmt["combine"] == (160 + 8 + 8, 256 + 8)  # whole rows over a NIC
    assert row_bytes("reference", SMALL, 2)["combine"] == (256 + 12, 256 + 12)


@pytest.mark.parametrize(("hosts", "near"), [(["a", "a"], True), (["a", "b"], False)])
def test_the_busier_direction_counts_and_what_stays_does_not(hosts, near):
    moved = traffic("peer", SMALL, hosts, SENT)
    row = row_bytes("peer", SMALL, 2)
    there = 2 * row["dispatch"][0]  # rank 0 sends two rows and gets one
    back = 3 * row["combine"][0]  # of three selections of rank 0; rank 1 gets one back
    found = moved["dispatch"].same_host if near else moved["dispatch"].other_hosts
    assert found.tolist() == [there, there]
    empty = moved["dispatch"].other_hosts if near else moved["dispatch"].same_host
    assert empty.tolist() == [0, 0]
    combine = moved["combine"].same_host if near else moved["combine"].other_hosts
    assert combine.tolist() == [back, back]
    pair = moved["pair"].same_host if near else moved["pair"].other_hosts
    assert pair.tolist() == [there + back] * 2


def test_one_rank_sends_nothing():
    moved = traffic("peer", SMALL, ["a"], [Sent.of(TOPK[0], 1, 4)])
    assert all(item.same_host.sum() == item.other_hosts.sum() == 0 for item in moved.values())


def test_imbalance_is_over_the_mean():
    # Experts get 2, 2, 3, 3 and ranks 4, 6 of 10 selections.
    assert imbalance(SENT) == {"by_rank": 1.2, "by_expert": 1.2}
    assert imbalance([Sent.of(np.array([[-1]]), 1, 4)]) == {"by_rank": 1.0, "by_expert": 1.0}


@given(
    ranks=st.integers(1, 4),
    local=st.integers(1, 3),
    hosts=st.integers(1, 3),
    seed=st.integers(0, 10**6),
)
def test_against_counting_each_message(ranks, local, hosts, seed):
    rng = np.random.default_rng(seed)
    experts, topk = ranks * local, min(2, ranks * local)
    p = replace(PARAMETERS, num_tokens=4, num_experts=experts, num_topk=topk, hidden=256)
    selected = [np.array([rng.permutation(experts)[:topk] for _ in range(4)]) for _ in range(ranks)]
    for rows in selected:
        rows[rng.random(rows.shape) < 0.2] = -1
    names = [f"host-{rank % hosts}" for rank in range(ranks)]
    size = row_bytes("peer", p, ranks)
    messages = []  # operation, from, to, bytes
    for source, rows in enumerate(selected):
        for row in rows.tolist():
            owners = [expert // local for expert in row if expert >= 0]
            messages += [("dispatch", source, to, size["dispatch"]) for to in set(owners)]
            messages += [("combine", owner, source, size["combine"]) for owner in owners]
    moved = traffic("peer", p, names, [Sent.of(rows, ranks, experts) for rows in selected])
    for operation in ("dispatch", "combine"):
        for rank in range(ranks):
            for near, found in (
                (True, moved[operation].same_host),
                (False, moved[operation].other_hosts),
            ):
                ends = [
                    (source, to, sizes[0 if near else 1])
                    for name, source, to, sizes in messages
                    if name == operation and source != to and (names[source] == names[to]) == near
                ]
                out = sum(count for source, _, count in ends if source == rank)
                into = sum(count for _, to, count in ends if to == rank)
                assert found[rank] == max(out, into)
