"""The arithmetic of ``ep-bench model``."""

from __future__ import annotations

import json
import random

import pytest
from ep_runtime.bench import cli, model
from ep_runtime.bench.model import Fleet

FLEET = Fleet()


def test_distinct_groups_agree_with_drawing() -> None:
    draw = random.Random(3)
    experts, topk, groups, rounds = 64, 6, 8, 4000
    total = 0
    for _ in range(rounds):
        chosen = draw.sample(range(experts), topk)
        total += len({expert // (experts // groups) for expert in chosen})
    assert model.distinct_groups(experts, topk, groups) == pytest.approx(total / rounds, rel=0.02)


@pytest.mark.parametrize(("groups", "expected"), [(8, 5.295), (16, 6.523), (64, 7.676)])
def test_distinct_ranks_as_computed_by_hand(groups: int, expected: float) -> None:
    assert model.distinct_groups(256, 8, groups) == pytest.approx(expected, abs=1e-3)


def test_one_node_uses_no_nic() -> None:
    prediction = model.predict(FLEET, 8)
    assert prediction.dispatch.nic_bytes == prediction.combine.nic_messages == 0
    assert prediction.queue_pairs == 0
    assert not prediction.node_dedup_pays
    # 7 of 8 selections leave the GPU in a combine.
    assert prediction.combine.nvlink_bytes == pytest.approx(128 * 8 * 14336 * 7 / 8)


def test_bytes_between_nodes() -> None:
    moved = model.traffic(FLEET, 16, "dispatch")
    row = 16 + 8 * 32 + 7168 + 224
    assert moved.nic_messages == pytest.approx(6.523 / 2 * 128, rel=1e-3)
    assert moved.nic_bytes == pytest.approx(moved.nic_messages * row)
    deduped = model.with_node_dedup(FLEET, 16, "dispatch")
    assert deduped.nic_messages == pytest.approx(0.997 * 128, rel=1e-3)
    assert deduped.nvlink_bytes > moved.nvlink_bytes


def test_one_gpu_is_what_was_measured() -> None:
    prediction = model.predict(Fleet(experts=32), 1)
    assert prediction.dispatch_us == pytest.approx(10.1, abs=0.3)
    assert prediction.combine_us == pytest.approx(16.8, abs=0.5)


def test_node_dedup_pays_less_and_less() -> None:
    gains = []
    for ranks in (32, 64, 128, 256, 512, 1024):
        prediction = model.predict(FLEET, ranks)
        gains.append(prediction.dispatch_us - prediction.node_dedup_dispatch_us)
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 30
    assert gains[-1] < 0


def test_published_figures_are_met_within_ten_percent() -> None:
    errors = [abs(error) for _, error in model.published_errors()]
    assert len(errors) == 16
    assert max(errors) < 0.10
    assert sum(errors) / len(errors) < 0.05


def test_queue_pairs_and_memory_at_2048() -> None:
    prediction = model.predict(FLEET, 2048)
    assert prediction.queue_pairs == 2040
    assert prediction.memory_is_extrapolated
    exact = model.predict(FLEET, 1024)
    assert not exact.memory_is_extrapolated
    assert prediction.memory_bytes == pytest.approx(2 * exact.memory_bytes, rel=0.02)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["model", "--ep", "8,16"]) == 0
    assert "Error against 16 published figures" in capsys.readouterr().out
    assert cli.main(["model", "--ep", "8,16", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [entry["ranks"] for entry in document["predictions"]] == [8, 16]
    assert len(document["published"]) == 16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ep", "7"], "--ep 7 must divide the 256 experts"),
        (["--ep", "0"], "--ep 0 must divide"),
        (["--ep", "12", "--num-experts", "48"], "whole nodes of 8 GPUs"),
        (["--ep", "many"], "invalid literal"),
        (["--hidden", "-1"], "hidden must be positive, got -1"),
        (["--num-topk", "300"], "--num-topk 300 is more than --num-experts 256"),
    ],
)
def test_bad_input_is_named(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["model", *options]) == 2
    assert message in capsys.readouterr().err
