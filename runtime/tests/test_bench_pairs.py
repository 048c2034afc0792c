"""The sweep over pairs of hosts: who meets whom, what is sent, and a bad link found by it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import jsonschema
import numpy as np
import pytest
import torch
from bench_reports import PARAMETERS, VERSIONS, make_ranks
from ep_runtime.bench import pairs, results
from ep_runtime.bench.measure import Operations
from ep_runtime.bench.waits import TIMED, reference_scale


@pytest.mark.parametrize("hosts", [2, 3, 4, 7, 16, 255])
def test_all_hosts_meet_once_in_disjoint_pairs(hosts):
    rounds = pairs.rounds_of(hosts)
    assert len(rounds) == (hosts - 1 if hosts % 2 == 0 else hosts)
    for met in rounds:
        busy = [host for pair in met for host in pair]
        assert len(busy) == len(set(busy)) == hosts - hosts % 2
    everybody = sorted(tuple(sorted(pair)) for met in rounds for pair in met)
    assert everybody == list(itertools.combinations(range(hosts), 2))


def test_partners_are_the_ranks_of_the_other_host():
    hosts = ["a", "a", "b", "b", "c", "c"]
    found = [pairs.partners_of(hosts, rank) for rank in range(6)]
    for number in range(3):
        for rank, partners in enumerate(others[number] for others in found):
            assert all(rank in found[partner][number] for partner in partners)
    assert sorted(map(tuple, found[0])) == [(), (2, 3), (4, 5)]


def test_tokens_go_to_the_partners_experts_evenly():
    chosen = pairs.routing_to([2, 3], experts_per_rank=4, shape=torch.Size((16, 6)))
    assert set(chosen.unique().tolist()) == set(range(8, 16))
    assert all(len(set(row)) == 6 for row in chosen.tolist())
    counts = torch.bincount(chosen.flatten(), minlength=16)[8:]
    assert counts.max() - counts.min() <= 1
    few = pairs.routing_to([1], experts_per_rank=2, shape=torch.Size((3, 4)))
    assert all(set(row) == {2, 3, -1} for row in few.tolist())
    assert pairs.routing_to([], 2, torch.Size((2, 2))).tolist() == [[-1, -1], [-1, -1]]


def test_only_waits_for_partners_count():
    """Ranks 1 and 2 of other hosts take 3 and 5 us, in turn; who is not met keeps no wait."""
    took_ns = torch.tensor([9_000, 3_000, 5_000])
    noted = []
    operations = Operations(
        dispatch=lambda waits: waits.add_(took_ns),
        combine=lambda handle, waits: waits.add_(2 * took_ns),
        barrier=lambda: None,
    )
    rounds = [pairs.Round(operations, partners, reference_scale(3)) for partners in ([1], [2], [])]
    figures = pairs.sweep(rounds, 3, torch.device("cpu"), iters=10, note=noted.append)
    np.testing.assert_allclose(figures.p50["dispatch"], [np.nan, 3, 5])
    np.testing.assert_allclose(figures.low["combine"], [np.nan, 6, 10])
    assert figures.own["dispatch"] >= 0
    assert sum(noted) == 3 * pairs.PASSES


def swept_ranks(slow=None, ranks=8, per_host=2, seed=0):
    """Results with a sweep; ``slow``: (source, receiver) hosts whose link takes 30 us more."""
    rng = np.random.default_rng(seed)
    everybody = []
    for result in make_ranks(ranks, per_host):
        waits = {}
        for name in TIMED:
            waits[name] = 20 * rng.lognormal(0, 0.05, ranks)
            waits[name][np.arange(ranks) // per_host == result.rank // per_host] = np.nan
            if slow is not None and slow[1] == result.rank // per_host:
                waits[name][np.arange(ranks) // per_host == slow[0]] += 30
        figures = {name: values.astype(np.float32) for name, values in waits.items()}
        swept = pairs.PairFigures(
            figures, figures, dict.fromkeys(TIMED, 10.0), dict.fromkeys(TIMED, 40.0)
        )
        everybody.append(results.RankResult(**{**vars(result), "swept": swept}))
    return everybody


def document(everybody):
    asked = replace(PARAMETERS, pairwise=20)
    clock = results.Clock("CUDA events, back to back", "back_to_back")
    report = results.document(asked, "nonce", "passed", clock, everybody, VERSIONS)
    jsonschema.validate(report, results.schema())
    return report


def test_a_link_that_is_slow_only_when_alone_is_named():
    """Among all links at once it costs nothing that could be seen: only the sweep has it."""
    report = document(swept_ranks(slow=(1, 3)))
    (culprit,) = report["culprits"]
    assert (culprit["kind"], culprit["hosts"]) == ("link", ["node-1"])
    assert (culprit["ranks"], culprit["peers"]) == ([2, 3], [6, 7])
    assert set(culprit["excess_us"]) == {"pairwise dispatch", "pairwise combine"}
    matrix = report["pairwise"]
    assert matrix["hosts"] == ["node-0", "node-1", "node-2", "node-3"]
    assert matrix["dispatch"][3][1] > matrix["dispatch"][1][3] + 20
    assert [row[host] for host, row in enumerate(matrix["combine"])] == [None] * 4


@pytest.mark.parametrize("seed", range(20))
def test_nobody_is_named_in_a_healthy_sweep(seed):
    assert document(swept_ranks(seed=seed))["culprits"] == []


def test_there_is_no_part_about_a_sweep_without_one():
    assert "pairwise" not in document(make_ranks(8))
