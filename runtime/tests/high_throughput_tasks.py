"""What each rank does in the tests of the high-throughput calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import high_throughput_oracle as oracle
import numpy as np
import torch
import torch.distributed as dist
from ep_runtime import Buffer, Config, EventHandle, EventOverlap

if TYPE_CHECKING:
    from high_throughput_oracle import Case
    from ranks import Rank

ANSWERS = (1.0, 0.5, -2.0, 0.25, 4.0, -1.0, 0.125, 8.0)  # exact in BF16


def make_buffer(me: Rank, **options: Any) -> Buffer:
    return Buffer(
        me.group, num_nvl_bytes=1024, explicitly_destroy=True, timeout_us=60_000_000, **options
    )


def config_of(case: Case) -> Config:
    return Config(case.num_sms, 6, 256, 6, 128)


def rows_of(case: Case, x: np.ndarray) -> Any:
    """``x`` as a dispatch takes it: BF16, or bytes with scales that tell token and group."""
    values = torch.from_numpy(x)
    if case.form == "bf16":
        return values.bfloat16()
    groups = case.hidden // 128
    scales = values[:, :1] + torch.arange(groups)
    if case.form == "int32":
        scales = scales.mul(16).to(torch.int32)
    # Column-major, as quantisation kernels make them.
    return values.to(torch.float8_e4m3fn), scales.T.contiguous().T


def same_rows(case: Case, got: Any, wanted: Any) -> None:
    got, wanted = (pair if isinstance(pair, tuple) else (pair,) for pair in (got, wanted))
    assert len(got) == len(wanted) == (1 if case.form == "bf16" else 2)
    for ours, theirs in zip(got, wanted):
        assert ours.dtype == theirs.dtype
        assert ours.is_contiguous()
        assert ours.shape == theirs.shape
        # Flat first: an empty tensor's strides may be anything.
        pair = [rows.reshape(-1).view(torch.uint8) for rows in (ours, theirs)]
        assert torch.equal(*pair)


def cut(rows: Any, count: int) -> Any:
    return tuple(t[:count] for t in rows) if isinstance(rows, tuple) else rows[:count]


def check_layout(case: Case, buffer: Buffer, given: Any) -> tuple[torch.Tensor, ...]:
    topk_idx = torch.from_numpy(given.topk_idx)
    per_rank, per_node, per_expert, in_rank, event = buffer.get_dispatch_layout(
        topk_idx, case.experts
    )
    assert event.event is None
    want = oracle.layout_of(case, given)
    for tensor, name in ((per_rank, "rank"), (per_expert, "expert"), (in_rank, "in_rank")):
        assert tensor.is_contiguous()
        assert tensor.dtype == (torch.bool if name == "in_rank" else torch.int32)
        assert np.array_equal(tensor.numpy(), want[name]), name
    if case.size <= 8:
        assert per_node is None
    else:
        assert per_node.dtype == torch.int32
        assert per_node.tolist() == want["node"].tolist()
    return per_rank, per_node, per_expert, in_rank


def check_case(me: Rank, case: Case, seed: int) -> None:
    """A dispatch, the same again by its handle, and combines: against the plain computation."""
    buffer = make_buffer(me)
    everyone = [oracle.make_given(case, seed, rank) for rank in range(case.size)]
    given = everyone[me.rank]
    per_rank, per_node, per_expert, in_rank = check_layout(case, buffer, given)
    want = oracle.received_by(case, everyone, me.rank)
    count = len(want.origin)
    worst = 0 if case.spare < 0 else max(1, count + case.spare)
    x = rows_of(case, given.x)
    call = buffer.internode_dispatch if case.internode else buffer.dispatch
    common: dict[str, Any] = {"config": config_of(case)}
    recv_x, idx, weights, counts, handle, event = call(
        x,
        num_tokens_per_rank=per_rank,
        num_tokens_per_rdma_rank=per_node,
        is_token_in_rank=in_rank,
        num_tokens_per_expert=per_expert,
        topk_idx=torch.from_numpy(given.topk_idx),
        topk_weights=torch.from_numpy(given.topk_weights),
        expert_alignment=case.alignment,
        num_worst_tokens=worst,
        **common,
    )
    assert event.event is None
    all_x = np.concatenate([other.x for other in everyone])
    first = np.cumsum([0, *case.tokens])
    chosen = np.array([first[source] + token for source, token in want.origin], np.int64)
    expected = rows_of(case, all_x[chosen])
    rows = worst or count
    assert len(recv_x if case.form == "bf16" else recv_x[0]) == rows
    same_rows(case, cut(recv_x, count), expected)
    assert idx.shape == weights.shape == (rows, case.topk)
    assert np.array_equal(idx[:count].numpy(), want.topk_idx)
    assert np.array_equal(weights[:count].numpy(), want.topk_weights)
    assert bool((idx[count:] == -1).all())
    assert counts == ([] if worst else want.per_expert)
    check_handle(case, handle, oracle.handle_of(case, everyone, me.rank), rows)

    again = call(x, handle=handle, **common)
    assert again[1:5] == (None, None, None, None)
    same_rows(case, cut(again[0], count), expected)

    answer = torch.zeros((rows, case.hidden), dtype=torch.bfloat16)
    answer[:count] = torch.from_numpy(all_x[chosen]).bfloat16() * ANSWERS[me.rank % 8]
    check_combines(me, case, buffer, given, answer, handle, weights)
    buffer.destroy()


def check_handle(case: Case, handle: Any, want: dict[int, np.ndarray], rows: int) -> None:
    assert type(handle) is tuple
    assert len(handle) == (10 if case.internode else 6)
    for position, value in want.items():
        got = handle[position]
        assert got.dtype in (torch.int32, torch.bool, torch.uint8)
        if position in (3, 7):  # by row
            assert len(got) == rows
            got = got[: len(value)]
        assert np.array_equal(got.numpy(), value), f"field {position}"
    if not case.internode:
        return
    channels, tokens = case.num_sms // 2, len(handle[0])
    shapes = {3: (case.nodes, channels), 4: (case.nodes,), 8: (tokens, case.nodes), 9: (0, 8)}
    for position, shape in shapes.items():
        assert handle[position].shape == shape
        assert handle[position].dtype == torch.int32


def check_combines(
    me: Rank,
    case: Case,
    buffer: Buffer,
    given: Any,
    answer: torch.Tensor,
    handle: Any,
    weights: torch.Tensor,
) -> None:
    draw = np.random.default_rng(me.rank)
    biases = [draw.integers(-8, 8, size=given.x.shape).astype(np.float32) for _ in range(2)]
    as_tensor = [torch.from_numpy(bias).bfloat16() for bias in biases]
    gains = np.array([ANSWERS[rank % 8] for rank in range(case.size)])
    call = buffer.internode_combine if case.internode else buffer.combine
    for number, bias in ((0, None), (1, as_tensor[0]), (2, tuple(as_tensor))):
        combined, sums, event = call(
            answer,
            handle,
            topk_weights=weights if number else None,
            bias=bias,
            config=config_of(case),
        )
        assert event.event is None
        want, want_weights = oracle.combined(case, given, gains, biases[:number])
        # Every value and partial sum is exact in float32, so one rounding gives the only answer.
        assert combined.dtype == torch.bfloat16
        assert torch.equal(combined, torch.from_numpy(want).bfloat16())
        if number == 0:
            assert sums is None
        else:
            assert sums.dtype == torch.float32
            assert np.array_equal(sums.numpy(), want_weights.astype(np.float32))


def check_events(me: Rank) -> None:
    """The ways to give and get events, and tensors without top-k."""
    buffer = make_buffer(me)
    topk_idx = torch.tensor([[0], [1], [-1]])
    x = torch.arange(3 * 8, dtype=torch.bfloat16).view(3, 8)
    for previous in (None, Buffer.capture(), EventHandle(), EventOverlap()):
        *layout, event = buffer.get_dispatch_layout(topk_idx, 2, previous, async_finish=True)
        assert event.event is not None
        names = (
            "num_tokens_per_rank",
            "num_tokens_per_rdma_rank",
            "num_tokens_per_expert",
            "is_token_in_rank",
        )
        given = dict(zip(names, (layout[0], layout[1], layout[2], layout[3])))
        recv_x, idx, weights, counts, handle, event = buffer.dispatch(
            x, **given, previous_event=previous, async_finish=True
        )
        event.current_stream_wait()
        assert torch.equal(recv_x, torch.cat([x[me.rank : me.rank + 1]] * 2))
        assert (idx, weights, counts) == (None, None, [2])
        combined, sums, event = buffer.combine(recv_x, handle, async_finish=True)
        with event:
            pass
        assert sums is None
        assert torch.equal(combined[:2], x[:2])
        assert not combined[2].any()
    buffer.destroy()


def check_report(me: Rank) -> None:
    normal = make_buffer(me)
    assert normal.transport_report()["calls"] == {
        "low_latency_dispatch": None,
        "low_latency_combine": None,
        "dispatch": "reference",
        "combine": "reference",
    }
    both = make_buffer(me, num_rdma_bytes=128, low_latency_mode=True, backend="reference")
    report = both.transport_report()
    assert report["calls"]["low_latency_dispatch"] == "reference"
    assert report["peers"] == ["self" if rank == me.rank else "gloo" for rank in range(me.size)]
    normal.destroy()
    both.destroy()


def _good(me: Rank, buffer: Buffer) -> dict[str, Any]:
    topk_idx = torch.tensor([[0, 1]])
    layout = buffer.get_dispatch_layout(topk_idx, 2)
    return {
        "x": torch.zeros((1, 8), dtype=torch.bfloat16),
        "num_tokens_per_rank": layout[0],
        "is_token_in_rank": layout[3],
        "num_tokens_per_expert": layout[2],
        "topk_idx": topk_idx,
        "topk_weights": torch.ones((1, 2)),
    }


def error_of(me: Rank, what: str) -> str:
    """The error that a wrong call of ``dispatch`` or ``combine`` raises, on every rank."""
    buffer = make_buffer(me)
    text = _error_of(me, buffer, what)
    # A rank that closes its connections early would be the other's error.
    dist.barrier(me.group)
    if what != "destroyed":
        buffer.destroy()
    return text


def _error_of(me: Rank, buffer: Buffer, what: str) -> str:
    good = _good(me, buffer)
    try:
        if what.startswith("combine"):
            *_, handle, _ = buffer.dispatch(**good, config=Config(4))
            if what == "combine config":
                buffer.combine(good["x"].expand(2, 8).contiguous(), handle, config=Config(6))
            elif what == "combine rows":
                buffer.combine(good["x"], handle, config=Config(4))
            elif what == "combine dtype":
                buffer.combine(good["x"].expand(2, 8).float(), handle, config=Config(4))
            elif what == "combine handle":
                buffer.combine(good["x"], handle[:3], config=Config(4))
        elif what == "destroyed":
            buffer.destroy()
            buffer.dispatch(**good)
        elif what == "layout dtype":
            buffer.get_dispatch_layout(good["topk_idx"].int(), 2)
        elif what == "layout expert":
            buffer.get_dispatch_layout(torch.tensor([[2]]), 2)
        elif what == "layout experts":
            buffer.get_dispatch_layout(good["topk_idx"], 3)
        elif what == "handle and topk":
            *_, handle, _ = buffer.dispatch(**good)
            buffer.dispatch(good["x"], handle=handle, topk_idx=good["topk_idx"])
        elif what == "differing hidden":
            good["x"] = torch.zeros((1, 8 + 8 * me.rank), dtype=torch.bfloat16)
            buffer.dispatch(**good)
        else:
            changes: dict[str, Any] = {
                "row bytes": {"x": torch.zeros((1, 9), dtype=torch.bfloat16)},
                "one topk": {"topk_weights": None},
                "no layout": {"is_token_in_rank": None},
                "counts": {"num_tokens_per_rank": torch.tensor([1, 0], dtype=torch.int32)},
                "worst": {"num_worst_tokens": 1},
                "worst alone": {"num_worst_tokens": 4, "topk_idx": None, "topk_weights": None},
                "odd sms": {"config": Config(3)},
                "comm stream": {"allocate_on_comm_stream": True},
                "scales": {"x": (torch.zeros((1, 16), dtype=torch.uint8), torch.zeros((2, 1)))},
                "alignment": {"expert_alignment": 0},
            }
            buffer.dispatch(**{**good, **changes[what]})
    except (RuntimeError, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def check_two_nodes(me: Rank) -> None:
    buffer = make_buffer(me)
    topk_idx = torch.tensor([[0, 9], [8, 9]])
    per_rank, per_node, per_expert, in_rank, _ = buffer.get_dispatch_layout(topk_idx, 16)
    assert per_node is not None
    assert per_node.tolist() == [1, 2]
    x = torch.ones((2, 8), dtype=torch.bfloat16)
    given = {
        "num_tokens_per_rank": per_rank,
        "is_token_in_rank": in_rank,
        "num_tokens_per_expert": per_expert,
    }
    try:
        buffer.dispatch(x, **given)
        raise AssertionError("num_tokens_per_rdma_rank was not asked for")
    except AssertionError as error:
        assert "num_tokens_per_rdma_rank is missing" in str(error)
    recv_x, *_, handle, _ = buffer.dispatch(x, num_tokens_per_rdma_rank=per_node, **given)
    assert len(handle) == 10
    assert handle[-4][-1] == len(recv_x)
    combined, _, _ = buffer.combine(recv_x, handle)
    assert bool((combined == 2).all())
    buffer.destroy()
