"""The layout of symmetric memory and the queue-pair plan."""

from __future__ import annotations

import pytest
from ep_runtime import Buffer, _core
from hypothesis import given
from hypothesis import strategies as st

SLOTS = 2


def align(size: int) -> int:
    return -(-size // 128) * 128


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, int, int, int]:
    ranks = draw(st.integers(1, 1024))
    return (
        draw(st.integers(1, 65535)),
        128 * draw(st.integers(1, 128)),
        ranks,
        ranks * draw(st.integers(1, 64)),
    )


@pytest.mark.parametrize(
    ("shape", "total"),
    [
        ((1, 128, 1, 1), 2 * 128 + 2 * 128 + 2 * 384 + 2 * 384),
        ((128, 7168, 8, 256), 148_705_664),
        ((128, 7168, 1, 256), 122_327_424),
        ((128, 7168, 64, 256), 359_733_248),
        ((512, 4096, 16, 32), 413_402_112),
    ],
)
def test_known_sizes(shape: tuple[int, int, int, int], total: int) -> None:
    assert Buffer.get_low_latency_rdma_size_hint(*shape) == total


def test_a_tenth_of_what_upstream_needs() -> None:
    assert Buffer.get_low_latency_rdma_size_hint(128, 7168, 8, 256) < 1_908_410_496 / 10


@given(shapes())
def test_regions_follow_the_stated_formula(shape: tuple[int, int, int, int]) -> None:
    tokens, hidden, ranks, experts = shape
    layout = _core.low_latency_layout(*shape)
    local, topk = experts // ranks, min(32, experts)
    payload = -(-(16 + 8 * topk) // 16) * 16
    assert (layout.local_experts, layout.topk_capacity) == (local, topk)
    assert layout.route_offset == 16
    assert layout.payload_offset == payload
    assert layout.scales_offset == payload + hidden
    assert layout.dispatch_row_stride == align(payload + 2 * hidden)
    assert layout.combine_row_stride == align(2 * hidden + 16)
    sizes = {
        "ack": align(8 * ranks),
        "barrier": align(8 * ranks),
        "dispatch_count": align(8 * SLOTS * ranks * (local + 1)),
        "combine_flag": align(8 * SLOTS * tokens * topk),
        "dispatch_row": SLOTS * ranks * tokens * layout.dispatch_row_stride,
        "combine_row": SLOTS * tokens * topk * layout.combine_row_stride,
    }
    begin = 0
    for name, size in sizes.items():
        assert getattr(layout, name) == begin
        begin += size
    assert layout.total_bytes == begin
    assert layout.scales_offset + 4 * hidden // 128 <= layout.dispatch_row_stride


@given(shapes(), st.data())
def test_places_lie_in_their_region_without_overlap(
    shape: tuple[int, int, int, int], data: st.DataObject
) -> None:
    layout = _core.low_latency_layout(*shape)
    tokens, _, ranks, _ = shape
    local, topk = layout.local_experts, layout.topk_capacity
    dimensions = {
        "ack": ((ranks,), 8),
        "barrier": ((ranks,), 8),
        "dispatch_count": ((SLOTS, ranks, local + 1), 8),
        "combine_flag": ((SLOTS, tokens, topk), 8),
        "dispatch_row": ((SLOTS, ranks, tokens), layout.dispatch_row_stride),
        "combine_row": ((SLOTS, tokens, topk), layout.combine_row_stride),
    }
    for name, (sizes, stride) in dimensions.items():
        index = [data.draw(st.integers(0, size - 1)) for size in sizes]
        place = 0
        for size, i in zip(sizes, index):
            place = place * size + i
        assert getattr(layout, f"{name}_at")(*index) == getattr(layout, name) + place * stride


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((0, 128, 1, 1), "num_max_dispatch_tokens_per_rank must be from 1 to 65535, got 0."),
        ((65536, 128, 1, 1), "num_max_dispatch_tokens_per_rank must be from 1 to 65535"),
        ((1, 7100, 1, 1), "hidden must be a multiple of 128, got 7100."),
        ((1, 0, 1, 1), "hidden must be from 128 to 16384, got 0."),
        ((1, 16512, 1, 1), "hidden must be from 128 to 16384, got 16512."),
        ((1, 128, 0, 1), "num_ranks must be from 1 to 1024, got 0."),
        ((1, 128, 1025, 1025), "num_ranks must be from 1 to 1024, got 1025."),
        ((1, 128, 1, -3), "num_experts must be from 1 to"),
        ((1, 128, 3, 256), "num_experts must be divisible by num_ranks, got 256 experts for 3"),
    ],
)
def test_refusals_name_the_argument(shape: tuple[int, int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match="^" + message):
        Buffer.get_low_latency_rdma_size_hint(*shape)


@pytest.mark.parametrize(
    ("tokens", "required", "depth"),
    [(64, 130, 1024), (511, 1024, 1024), (512, 1026, 2048), (1024, 2050, 4096)],
)
def test_queue_pair_plan(tokens: int, required: int, depth: int) -> None:
    plan = _core.plan_queue_pairs(tokens, 8, 256)
    assert (plan.qps_per_rank, plan.required_depth, plan.depth) == (32, required, depth)


@given(st.integers(1, 16383))
def test_depth_is_a_power_of_two_that_suffices(tokens: int) -> None:
    plan = _core.plan_queue_pairs(tokens, 1, 1)
    assert plan.required_depth == _core.required_qp_depth(tokens) == 2 * (tokens + 1)
    assert plan.required_depth <= plan.depth <= _core.MAX_QP_DEPTH
    assert plan.depth & (plan.depth - 1) == 0


def test_no_queue_pair_is_deep_enough() -> None:
    with pytest.raises(
        ValueError, match="num_max_dispatch_tokens_per_rank must be from 1 to 16383"
    ):
        _core.plan_queue_pairs(16384, 1, 1)
