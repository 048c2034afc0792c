"""torch's all_to_all as the benchmark compares with it: right, and found out when it is not."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from ep_runtime.bench.comparison import all_to_all
from ep_runtime.bench.exchange import AllToAll
from ep_runtime.bench.pace import Pace
from ep_runtime.bench.routing import Inputs
from ep_runtime.bench.world import World

CPU = torch.device("cpu")
WORLD = World(rank=0, size=1, local_rank=0, host="node", launched=False)


@pytest.fixture(autouse=True)
def _group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def inputs(holes=True):
    draw = torch.Generator().manual_seed(0)
    topk = torch.rand(6, 8, generator=draw).topk(3).indices
    if holes:
        topk[0, 1] = topk[3] = -1
    return Inputs(
        torch.randn(6, 128, generator=draw).bfloat16(), topk, torch.rand(6, 3, generator=draw)
    )


@pytest.mark.parametrize("holes", [False, True])
def test_identity_experts_give_every_token_back_weighted(holes):
    given = inputs(holes)
    exchange = AllToAll(given, local_experts=8)
    exchange.check()
    out = exchange.combine()
    wanted = (given.topk_weights * (given.topk_idx >= 0)).sum(1, keepdim=True) * given.x.float()
    assert torch.allclose(out.float(), wanted, rtol=0.03, atol=1e-3)
    assert exchange.sent == [int((given.topk_idx >= 0).sum())]


def test_swapped_rows_are_wrong():
    exchange = AllToAll(inputs(), local_experts=8)
    exchange.place = exchange.place.roll(3)
    with pytest.raises(AssertionError, match="all_to_all is off by"):
        exchange.check()


def test_a_rank_that_selects_nothing_takes_part():
    given = inputs()
    given.topk_idx.fill_(-1)
    exchange = AllToAll(given, local_experts=8)
    assert exchange.error() == 0
    assert not exchange.combine().any()


def test_wrong_results_are_not_compared_with(monkeypatch):
    alone = Pace(3, 1, 0.0, share=lambda mine: [mine])
    found = all_to_all(inputs(), 8, WORLD, CPU, alone)
    assert {name: len(times) for name, times in found.times.items()} == {
        **dict.fromkeys(("dispatch", "combine", "pair"), 3)
    }
    monkeypatch.setattr(AllToAll, "TOLERANCE", 0.0)
    found = all_to_all(inputs(), 8, WORLD, CPU, alone)
    assert found.times == {}
    assert found.reason.startswith("rank 0: its results are off by ")
