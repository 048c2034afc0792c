"""What each rank does in the tests: operations of a ``Buffer``, compared with the oracle."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from ep_runtime import Buffer, EPPeerLostError, EPTimeoutError, get_buffer
from oracle import (
    GROUP,
    Inputs,
    Row,
    Shape,
    expected_combine,
    expected_rows,
    expert_answer,
    make_inputs,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ranks import Rank

FORMATS: dict[str, dict[str, bool]] = {
    "bf16": {"use_fp8": False},
    "fp8": {"use_fp8": True},
    "fp8-round": {"use_fp8": True, "round_scale": True},
    "ue8m0": {"use_fp8": True, "round_scale": True, "use_ue8m0": True},
}
MODES: dict[str, dict[str, bool]] = {
    "plain": {},
    "hook": {"return_recv_hook": True},
    "async": {"async_finish": True},
}


def make_buffer(me: Rank, shape: Shape, **options: Any) -> Buffer:
    size = Buffer.get_low_latency_rdma_size_hint(
        shape.max_tokens, shape.hidden, shape.size, shape.experts
    )
    return Buffer(
        me.group,
        num_rdma_bytes=size,
        low_latency_mode=True,
        num_qps_per_rank=shape.local,
        explicitly_destroy=True,
        **{"backend": "reference", "timeout_us": 60_000_000, **options},
    )


def tensors(inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (
        torch.from_numpy(inputs.x).bfloat16(),
        torch.from_numpy(inputs.topk_idx),
        torch.from_numpy(inputs.topk_weights),
    )


def finish(mode: str, event: Any, hook: Any) -> None:
    if mode == "hook":
        assert event.event is None
        assert hook() is None
    else:
        assert hook is None
        if mode == "async":
            with event:
                pass
            event.current_stream_wait()
        else:
            assert event.event is None


def unpacked_scales(scales: torch.Tensor, rows: int) -> torch.Tensor:
    """float32 [rows, H/128] of the first rows of one expert."""
    if scales.dtype != torch.int32:
        return scales[:rows]
    packed = scales[:rows].contiguous().numpy().astype(np.uint32)
    exponents = np.stack([(packed >> (8 * byte)) & 0xFF for byte in range(4)], axis=-1)
    return torch.from_numpy((exponents.astype(np.uint32) << 23).view(np.float32)).flatten(1)


def compare_rows(
    shape: Shape, experts: list[list[Row]], recv_x: Any, count: torch.Tensor, handle: Any
) -> None:
    data, scales = recv_x if isinstance(recv_x, tuple) else (recv_x, None)
    src_info, layout_range, *numbers = handle
    capacity = shape.size * shape.max_tokens
    assert numbers == [shape.max_tokens, shape.hidden, shape.experts]
    assert data.shape == (shape.local, capacity, shape.hidden)
    assert data.is_contiguous()
    assert src_info.shape == (shape.local, capacity)
    assert src_info.dtype == torch.int32
    assert layout_range.shape == (shape.local, shape.size)
    assert layout_range.dtype == torch.int64
    assert count.dtype == torch.int32
    assert count.tolist() == [len(rows) for rows in experts]
    if scales is not None:
        columns = shape.hidden // (4 * GROUP if scales.dtype == torch.int32 else GROUP)
        assert scales.shape == (shape.local, capacity, columns)
        assert scales.stride() == (columns * capacity, 1, capacity)
    for expert, rows in enumerate(experts):
        begin = 0
        for source in range(shape.size):
            number = sum(row.source == source for row in rows)
            assert int(layout_range[expert, source]) == begin << 32 | number
            begin += number
        assert src_info[expert, : len(rows)].tolist() == [row.token for row in rows]
        if not rows:
            continue
        want = torch.from_numpy(np.stack([row.data for row in rows]))
        got = data[expert, : len(rows)]
        if scales is None:
            assert torch.equal(got.float(), want)
        else:
            assert torch.equal(got.view(torch.uint8), want)
            want_scales = torch.from_numpy(np.stack([row.scales for row in rows]))
            assert torch.equal(unpacked_scales(scales[expert], len(rows)), want_scales)


def answers(shape: Shape, rank: int, inputs: list[Inputs], experts: list[list[Row]]) -> Any:
    """BF16 [L, R*M, H]: each expert's answers, NaN where no row is."""
    x = np.full((shape.local, shape.size * shape.max_tokens, shape.hidden), np.nan, np.float32)
    for local, rows in enumerate(experts):
        for place, row in enumerate(rows):
            sent = inputs[row.source].x[row.token]
            x[local, place] = expert_answer(sent, rank * shape.local + local, row.place)
    return torch.from_numpy(x).bfloat16()


def assert_one_rounding(got: torch.Tensor, given: Inputs, exact: np.ndarray, terms: Any) -> None:
    """BF16 ``got`` is a float32 sum of the exact terms, rounded once."""
    ulp = np.exp2(np.floor(np.log2(np.maximum(np.abs(exact), 1e-38))) - 7)
    allowed = 0.5 * ulp * 1.001 + terms * given.topk_idx.shape[1] * 2.0**-24
    error = np.abs(got.double().numpy() - exact)
    assert (error <= allowed).all(), (
        f"largest error above what is allowed: {(error - allowed).max()}"
    )


def check_round_trips(me: Rank, shape: Shape, seed: int, mode: str) -> None:
    """All formats one after another on one buffer, with no clean between."""
    buffer = make_buffer(me, shape)
    for number, form in enumerate(FORMATS):
        if form == "ue8m0" and shape.hidden % 512 != 0:
            continue
        inputs = [make_inputs(shape, seed + number, rank) for rank in range(shape.size)]
        x, topk_idx, weights = tensors(inputs[me.rank])
        stats = torch.full((shape.local,), 5, dtype=torch.int32)
        waits = torch.zeros(shape.size, dtype=torch.int64)
        recv_x, count, handle, event, hook = buffer.low_latency_dispatch(
            x,
            topk_idx,
            shape.max_tokens,
            shape.experts,
            cumulative_local_expert_recv_stats=stats,
            dispatch_wait_recv_cost_stats=waits,
            **FORMATS[form],
            **MODES[mode],
        )
        finish(mode, event, hook)
        rows = expected_rows(
            shape,
            inputs,
            me.rank,
            fp8=form != "bf16",
            round_scale=form in ("fp8-round", "ue8m0"),
        )
        compare_rows(shape, rows, recv_x, count, handle)
        assert stats.tolist() == [5 + len(r) for r in rows]
        assert bool((waits > 0).all())

        out = torch.full(x.shape, float("nan"), dtype=torch.bfloat16) if number % 2 else None
        waits.zero_()
        combined, event, hook = buffer.low_latency_combine(
            answers(shape, me.rank, inputs, rows),
            topk_idx,
            weights,
            handle,
            out=out,
            combine_wait_recv_cost_stats=waits,
            **MODES[mode],
        )
        finish(mode, event, hook)
        assert out is None or combined is out
        assert combined.dtype == torch.bfloat16
        assert combined.shape == x.shape
        assert_one_rounding(combined, inputs[me.rank], *expected_combine(shape, inputs[me.rank]))
        assert bool((waits > 0).all())
    buffer.destroy()


def dispatched(me: Rank, buffer: Buffer, shape: Shape, seed: int, **options: Any) -> Any:
    """Inputs of all ranks, expected rows here, and what a BF16 dispatch returned."""
    inputs = [make_inputs(shape, seed, rank) for rank in range(shape.size)]
    x, topk_idx, _ = tensors(inputs[me.rank])
    result = buffer.low_latency_dispatch(
        x, topk_idx, shape.max_tokens, shape.experts, use_fp8=False, **options
    )
    return inputs, expected_rows(shape, inputs, me.rank, fp8=False, round_scale=False), result


def check_zero_copy(me: Rank, shape: Shape, seed: int) -> None:
    buffer = make_buffer(me, shape)
    inputs, rows, (_, _, handle, _, _) = dispatched(me, buffer, shape, seed)
    x = answers(shape, me.rank, inputs, rows)
    memory = buffer.get_next_low_latency_combine_buffer(handle)
    stride = shape.hidden + shape.hidden // 64
    assert memory.shape == x.shape
    assert memory.stride() == (x.shape[1] * stride, stride, 1)
    memory.copy_(x)
    _, topk_idx, weights = tensors(inputs[me.rank])
    combined, _, _ = buffer.low_latency_combine(
        torch.zeros_like(x), topk_idx, weights, handle, zero_copy=True
    )
    assert_one_rounding(combined, inputs[me.rank], *expected_combine(shape, inputs[me.rank]))
    buffer.destroy()


def check_logfmt(me: Rank, shape: Shape, seed: int) -> None:
    buffer = make_buffer(me, shape)
    inputs, rows, (_, _, handle, _, _) = dispatched(me, buffer, shape, seed)
    _, topk_idx, weights = tensors(inputs[me.rank])
    combined, _, _ = buffer.low_latency_combine(
        answers(shape, me.rank, inputs, rows), topk_idx, weights, handle, use_logfmt=True
    )
    exact, terms = expected_combine(shape, inputs[me.rank])
    error = np.abs(combined.double().numpy() - exact)
    # Codes are at most 32 octaves / 510 apart, and values stay within half a gap.
    allowed = terms * (2 ** (32 / 510) - 1) + np.abs(exact) * 2.0**-8 + 1e-9
    assert (error <= allowed).all()
    # Below 1 every group is encoded; above, a few tokens may all stay BF16.
    small = answers(shape, me.rank, inputs, rows) * 2.0**-10
    encoded, plain = (
        buffer.low_latency_combine(small, topk_idx, weights, handle, use_logfmt=logfmt)[0]
        for logfmt in (True, False)
    )
    assert not torch.equal(plain, encoded), "nothing was encoded, so nothing was tested"
    buffer.destroy()


def check_two_in_flight(me: Rank, shape: Shape, seed: int) -> None:
    """Two micro-batches, as vLLM runs them: the receive of one comes after the send of the next."""
    buffer = make_buffer(me, shape)
    first = dispatched(me, buffer, shape, seed, return_recv_hook=True)
    second = dispatched(me, buffer, shape, seed + 1, return_recv_hook=True)
    try:
        dispatched(me, buffer, shape, seed + 2, return_recv_hook=True)
        raise AssertionError("a third send without a receive was let through")
    except RuntimeError as error:
        assert "receive hooks were not called" in str(error)
    for _, rows, (recv_x, count, handle, _, hook) in (first, second):
        hook()
        compare_rows(shape, rows, recv_x, count, handle)
        try:
            hook()
            raise AssertionError("a hook could be called twice")
        except RuntimeError as error:
            assert "was called before" in str(error)
    combines = []
    for inputs, rows, (_, _, handle, _, _) in (first, second):
        _, topk_idx, weights = tensors(inputs[me.rank])
        x = answers(shape, me.rank, inputs, rows)
        result = buffer.low_latency_combine(x, topk_idx, weights, handle, return_recv_hook=True)
        combines.append((inputs[me.rank], result))
    for given, (combined, _, hook) in reversed(combines):
        hook()
        assert_one_rounding(combined, given, *expected_combine(shape, given))
    buffer.destroy()


def check_hook_defers(me: Rank, shape: Shape, seed: int) -> None:
    """A hook's operation waits for nobody before the hook is called."""
    buffer = make_buffer(me, shape)
    if me.rank != 0:
        time.sleep(2)
    began = time.monotonic()
    _, rows, (recv_x, count, handle, _, hook) = dispatched(
        me, buffer, shape, seed, return_recv_hook=True
    )
    if me.rank == 0:
        assert time.monotonic() - began < 1.5
    count.fill_(-1)
    hook()
    compare_rows(shape, rows, recv_x, count, handle)
    buffer.destroy()


def check_waits(me: Rank, shape: Shape, seed: int) -> None:
    """Ranks 2 and 3 are late alike; the statistics of ranks 0 and 1 show both, and only them."""
    buffer = make_buffer(me, shape)
    waits = torch.zeros(shape.size, dtype=torch.int64)
    dispatched(me, buffer, shape, seed, dispatch_wait_recv_cost_stats=waits)
    first = waits.clone()
    if me.rank >= 2:
        time.sleep(2)
    _, rows, (recv_x, count, handle, _, _) = dispatched(
        me, buffer, shape, seed, dispatch_wait_recv_cost_stats=waits
    )
    compare_rows(shape, rows, recv_x, count, handle)
    added = (waits - first).tolist()
    assert min(added) >= 0
    if me.rank < 2:
        assert min(added[2:]) > 1_500_000_000
        assert max(added[:2]) < 1_000_000_000
    buffer.destroy()


def check_masks(me: Rank, shape: Shape, seed: int) -> None:
    """The last rank is masked by the others, and does nothing."""
    buffer = make_buffer(me, shape, enable_shrink=True)
    gone = shape.size - 1
    status = torch.full((shape.size,), -1, dtype=torch.int32)
    buffer.low_latency_query_mask_buffer(status)
    assert status.tolist() == [0] * shape.size
    if me.rank != gone:
        buffer.low_latency_update_mask_buffer(gone, True)
        buffer.low_latency_query_mask_buffer(status)
        assert status.tolist() == [0] * gone + [1]
        inputs, _, (recv_x, count, handle, _, _) = dispatched(me, buffer, shape, seed)
        silent = Inputs(*(values[:0] for values in vars(inputs[gone]).values()))
        heard = [*inputs[:gone], silent]
        rows = expected_rows(shape, heard, me.rank, fp8=False, round_scale=False)
        compare_rows(shape, rows, recv_x, count, handle)
        _, topk_idx, weights = tensors(inputs[me.rank])
        combined, _, _ = buffer.low_latency_combine(
            answers(shape, me.rank, heard, rows), topk_idx, weights, handle
        )
        exact = expected_combine(shape, inputs[me.rank], masked=(gone,))
        assert_one_rounding(combined, inputs[me.rank], *exact)
        buffer.clean_low_latency_buffer(shape.max_tokens, shape.hidden, shape.experts)
        buffer.low_latency_clean_mask_buffer()
        buffer.low_latency_query_mask_buffer(status)
        assert status.tolist() == [0] * shape.size
    buffer.destroy()


def check_clean(me: Rank, shape: Shape, seed: int) -> None:
    """A clean drops what was sent and not received; the next operations are right."""
    buffer = make_buffer(me, shape)
    memory = buffer.get_local_buffer_tensor(torch.int8, use_rdma_buffer=True)
    assert memory.shape == (buffer.num_rdma_bytes,)
    memory.fill_(7)
    _, _, (_, _, _, _, hook) = dispatched(me, buffer, shape, seed, return_recv_hook=True)
    buffer.clean_low_latency_buffer(shape.max_tokens, shape.hidden, shape.experts)
    assert not bool(memory.any())
    try:
        hook()
        raise AssertionError("a hook from before the clean could be called")
    except RuntimeError as error:
        assert "cleaned" in str(error)
    for number in range(3):
        _, rows, (recv_x, count, handle, _, _) = dispatched(me, buffer, shape, seed + number)
        compare_rows(shape, rows, recv_x, count, handle)
    buffer.destroy()


def check_get_buffer(me: Rank, shape: Shape, seed: int) -> None:
    numbers = (shape.max_tokens, shape.hidden, shape.experts)
    buffer = get_buffer(me.group, *numbers)
    assert get_buffer(me.group, *numbers) is buffer
    assert get_buffer(me.group, shape.max_tokens + 1, shape.hidden, shape.experts) is not buffer
    _, rows, (recv_x, count, handle, _, _) = dispatched(me, buffer, shape, seed)
    compare_rows(shape, rows, recv_x, count, handle)
    buffer.destroy()
    again = get_buffer(me.group, *numbers)
    assert again is not buffer
    again.destroy()


def check_rank_and_size(me: Rank, shape: Shape, seed: int) -> None:
    """Buffer(rank=, group_size=) takes the default group, which exists here."""
    buffer = Buffer(
        rank=me.rank,
        group_size=me.size,
        num_nvl_bytes=1 << 30,
        num_rdma_bytes=1 << 30,
        low_latency_mode=True,
        num_qps_per_rank=4,
        allow_nvlink_for_low_latency_mode=True,
        backend="reference",
    )
    assert (buffer.rank, buffer.group_size) == (me.rank, me.size)
    _, rows, (recv_x, count, handle, _, _) = dispatched(me, buffer, shape, seed)
    compare_rows(shape, rows, recv_x, count, handle)


def error_of(me: Rank, shape: Shape, seed: int, what: str, **options: Any) -> str:
    """Do ``what`` and return the error it ends with."""
    try:
        _FAULTS[what](me, shape, seed, **options)
    except (RuntimeError, ValueError, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def _differing_hidden(me: Rank, shape: Shape, seed: int) -> None:
    buffer = make_buffer(me, shape)
    hidden = shape.hidden - GROUP * (me.rank == 1)
    x = torch.zeros((1, hidden), dtype=torch.bfloat16)
    topk_idx = torch.zeros((1, 1), dtype=torch.int64)
    try:
        buffer.low_latency_dispatch(x, topk_idx, shape.max_tokens, shape.experts)
    finally:
        buffer.destroy()


def _differing_bytes(me: Rank, shape: Shape, seed: int) -> None:
    Buffer(me.group, 0, 128 * (1 + me.rank), True, backend="reference")


def _silent_peer(me: Rank, shape: Shape, seed: int) -> None:
    """Rank 1 does not dispatch; rank 0 waits half a second for it."""
    buffer = make_buffer(me, shape)
    if me.rank == 0:
        try:
            dispatched(me, buffer, shape, seed, timeout_us=500_000)
        except EPTimeoutError as error:
            assert (error.rank, error.peer, error.phase) == (0, 1, "dispatch receive")
            assert 400_000 <= error.waited_us < 5_000_000
            raise
    else:
        time.sleep(1.5)


_FAULTS = {
    "differing hidden": _differing_hidden,
    "differing bytes": _differing_bytes,
    "silent peer": _silent_peer,
}


def go_on_without(me: Rank, shape: Shape, seed: int, enable_shrink: bool) -> Iterator[Any] | str:
    """The last rank ends between two dispatches; what the others see in the second."""
    buffer = make_buffer(me, shape, enable_shrink=enable_shrink, timeout_us=20_000_000)
    dispatched(me, buffer, shape, seed)
    dist.barrier(group=me.group)
    if me.rank == shape.size - 1:
        os._exit(1)
    try:
        inputs, _, (recv_x, count, handle, _, _) = dispatched(me, buffer, shape, seed + 1)
    except EPPeerLostError as error:
        return str(error)
    if enable_shrink:
        silent = Inputs(*(values[:0] for values in vars(inputs[-1]).values()))
        heard = [*inputs[:-1], silent]
        rows = expected_rows(shape, heard, me.rank, fp8=False, round_scale=False)
        compare_rows(shape, rows, recv_x, count, handle)
        status = torch.zeros(shape.size, dtype=torch.int32)
        buffer.low_latency_query_mask_buffer(status)
        return str(status.tolist())
    return "no error"
