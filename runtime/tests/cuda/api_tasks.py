"""What each rank does in the tests of the public API: every mode gives the right rows and sums."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from cases import Inputs, Shape, exact_combine, expert_answers, expert_gain, make_inputs
from ep_runtime import Buffer
from ep_runtime.backends.base import SEND_AND_RECEIVE, DispatchResult
from ep_runtime.errors import EPError
from matrix_tasks import (
    TIMEOUT_US,
    assert_same_dispatch,
    assert_within_one_rounding,
    dispatch_request,
    reference_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pool import Rank

SHAPE = Shape(2048, 8, 32, 48)
FP8 = "fp8"
BF16 = "bf16"


@contextmanager
def buffer_for(me: Rank, shape: Shape, **options: Any) -> Iterator[Buffer]:
    size = Buffer.get_low_latency_rdma_size_hint(
        shape.max_tokens, shape.hidden, me.size, shape.num_experts
    )
    buffer = Buffer(
        dist.group.WORLD,
        num_rdma_bytes=options.pop("num_rdma_bytes", size),
        low_latency_mode=True,
        num_qps_per_rank=shape.num_experts // me.size,
        explicitly_destroy=True,
        backend=os.environ.get("EP_TEST_BACKEND", "peer"),
        **{"timeout_us": TIMEOUT_US, **options},
    )
    try:
        yield buffer
    finally:
        torch.cuda.synchronize()
        buffer.destroy()


def dispatch(
    me: Rank, buffer: Buffer, shape: Shape, inputs: Inputs, form: str = FP8, **options: Any
) -> tuple[Any, ...]:
    return buffer.low_latency_dispatch(
        inputs.x.to(me.device),
        inputs.topk_idx.to(me.device),
        shape.max_tokens,
        shape.num_experts,
        use_fp8=form == FP8,
        **options,
    )


def as_result(recv: Any, count: torch.Tensor, handle: tuple[Any, ...]) -> DispatchResult:
    data, scales = recv if isinstance(recv, tuple) else (recv, None)
    return DispatchResult(data, scales, count, handle[0], handle[1])


def assert_dispatch(
    me: Rank, shape: Shape, inputs: Inputs, got: DispatchResult, form: str, where: str
) -> None:
    want = reference_of(me).dispatch(dispatch_request(shape, inputs, "cpu", me.size, form))
    want.run(SEND_AND_RECEIVE)
    torch.cuda.synchronize()
    assert_same_dispatch(got, want.result, where)


def answers(me: Rank, shape: Shape, seed: int, result: DispatchResult) -> torch.Tensor:
    rows = expert_answers(
        shape, seed, me.rank, me.size, result.src_info.cpu(), result.layout_range.cpu()
    )
    return rows.to(me.device)


def assert_combined(shape: Shape, inputs: Inputs, got: torch.Tensor, where: str) -> None:
    exact, magnitude = exact_combine(shape, inputs)
    torch.cuda.synchronize()
    assert_within_one_rounding(got.cpu(), exact, magnitude, shape.num_topk, where)


def combine(
    me: Rank, buffer: Buffer, inputs: Inputs, rows: torch.Tensor, handle: Any, **options: Any
) -> tuple[Any, ...]:
    return buffer.low_latency_combine(
        rows, inputs.topk_idx.to(me.device), inputs.topk_weights.to(me.device), handle, **options
    )


def hook_mode(me: Rank, seed: int) -> None:
    with buffer_for(me, SHAPE) as buffer:
        for form in (FP8, BF16):
            inputs = make_inputs(SHAPE, seed, me.rank, me.size)
            recv, count, handle, event, hook = dispatch(
                me, buffer, SHAPE, inputs, form, return_recv_hook=True
            )
            assert event.event is None
            torch.randn(512, 512, device=me.device).matmul(torch.randn(512, 512, device=me.device))
            hook()
            result = as_result(recv, count, handle)
            assert_dispatch(me, SHAPE, inputs, result, form, f"hook {form}")
            out, _, hook = combine(
                me, buffer, inputs, answers(me, SHAPE, seed, result), handle, return_recv_hook=True
            )
            hook()
            assert_combined(SHAPE, inputs, out, f"hook {form}")


def async_mode(me: Rank, seed: int) -> None:
    with buffer_for(me, SHAPE) as buffer:
        inputs = make_inputs(SHAPE, seed, me.rank, me.size)
        recv, count, handle, event, hook = dispatch(me, buffer, SHAPE, inputs, async_finish=True)
        assert hook is None
        event.current_stream_wait()
        result = as_result(recv, count, handle)
        assert_dispatch(me, SHAPE, inputs, result, FP8, "async")
        out, event, _ = combine(
            me, buffer, inputs, answers(me, SHAPE, seed, result), handle, async_finish=True
        )
        event.current_stream_wait()
        assert_combined(SHAPE, inputs, out, "async")


def graph_mode(me: Rank, seed: int, hooks: bool) -> None:
    """Captured once, replayed over fresh inputs that are copied into the captured tensors."""
    shape, local = SHAPE, SHAPE.num_experts // me.size
    gain = expert_gain(shape.num_experts)[me.rank * local :][:local].to(me.device)
    with buffer_for(me, shape) as buffer:
        first = make_inputs(shape, seed, me.rank, me.size)
        static = Inputs(*(t.to(me.device) for t in (first.x, first.topk_idx, first.topk_weights)))
        out = torch.empty_like(static.x)

        def step() -> tuple[Any, ...]:
            recv, count, handle, _, hook = dispatch(
                me, buffer, shape, static, BF16, return_recv_hook=hooks
            )
            if hooks:
                hook()
            rows = (recv.float() * gain.view(-1, 1, 1)).bfloat16()
            _, _, hook = combine(me, buffer, static, rows, handle, out=out, return_recv_hook=hooks)
            if hooks:
                hook()
            return recv, count, handle

        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            step()  # warm up: lazy loading is not capturable
        torch.cuda.synchronize()
        dist.barrier()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            recv, count, handle = step()
        for replay in range(6):
            inputs = make_inputs(shape, seed + 31 * replay, me.rank, me.size)
            static.x.copy_(inputs.x)
            static.topk_idx.copy_(inputs.topk_idx)
            static.topk_weights.copy_(inputs.topk_weights)
            out.fill_(float("nan"))
            graph.replay()
            where = f"replay {replay} hooks {hooks}"
            assert_dispatch(me, shape, inputs, as_result(recv, count, handle), BF16, where)
            assert_combined(shape, inputs, out, where)
        # Eager calls go on from where the graph left the epochs.
        inputs = make_inputs(shape, seed, me.rank, me.size)
        recv, count, handle, *_ = dispatch(me, buffer, shape, inputs)
        assert_dispatch(me, shape, inputs, as_result(recv, count, handle), FP8, "after the graph")


def two_alive(me: Rank, seed: int) -> None:
    """The interleavings of two micro-batches, over and over on the same slots."""
    orders = ("receive in order", "receive in reverse", "combine between")
    with buffer_for(me, SHAPE) as buffer:
        for number in range(9):
            order = orders[number % 3]
            batches = [make_inputs(SHAPE, seed + 2 * number + i, me.rank, me.size) for i in (0, 1)]
            flying = [
                dispatch(me, buffer, SHAPE, inputs, return_recv_hook=True) for inputs in batches
            ]
            turns = (1, 0) if order == "receive in reverse" else (0, 1)
            sums: dict[int, Any] = {}
            for i in turns:
                recv, count, handle, _, hook = flying[i]
                hook()
                result = as_result(recv, count, handle)
                where = f"{order} {number} batch {i}"
                assert_dispatch(me, SHAPE, batches[i], result, FP8, where)
                rows = answers(me, SHAPE, seed + 2 * number + i, result)
                out, _, hook = combine(me, buffer, batches[i], rows, handle, return_recv_hook=True)
                sums[i] = (out, hook, rows)
                if order == "combine between":
                    hook()
            for i in turns:
                out, hook, _ = sums[i]
                if order != "combine between":
                    hook()
                assert_combined(SHAPE, batches[i], out, f"{order} {number} batch {i}")


def zero_copy_and_out(me: Rank, seed: int) -> None:
    for shape in (SHAPE, Shape(640, 4, 16, 24)):
        with buffer_for(me, shape) as buffer:
            for number in range(3):
                inputs = make_inputs(shape, seed + number, me.rank, me.size)
                recv, count, handle, *_ = dispatch(me, buffer, shape, inputs, BF16)
                rows = answers(me, shape, seed + number, as_result(recv, count, handle))
                target = buffer.get_next_low_latency_combine_buffer(handle)
                assert target.shape == rows.shape
                target.copy_(rows)
                out = torch.full_like(inputs.x, float("nan"), device=me.device)
                garbage = torch.full_like(rows, 7.0)
                got, _, _ = combine(me, buffer, inputs, garbage, handle, zero_copy=True, out=out)
                assert got.data_ptr() == out.data_ptr()
                assert_combined(shape, inputs, got, f"zero copy {number}")


def statistics(me: Rank, seed: int) -> None:
    local = SHAPE.num_experts // me.size
    cumulative = torch.zeros(local, dtype=torch.int32, device=me.device)
    waits = torch.zeros(me.size, dtype=torch.int64, device=me.device)
    combine_waits = torch.zeros(me.size, dtype=torch.int64, device=me.device)
    with buffer_for(me, SHAPE) as buffer:
        total = torch.zeros(local, dtype=torch.int32)
        for number in range(3):
            inputs = make_inputs(SHAPE, seed + number, me.rank, me.size)
            if me.rank == me.size - 1:
                time.sleep(0.05)
            recv, count, handle, *_ = dispatch(
                me,
                buffer,
                SHAPE,
                inputs,
                cumulative_local_expert_recv_stats=cumulative,
                dispatch_wait_recv_cost_stats=waits,
            )
            total += count.cpu()
            rows = answers(me, SHAPE, seed + number, as_result(recv, count, handle))
            combine(me, buffer, inputs, rows, handle, combine_wait_recv_cost_stats=combine_waits)
            torch.cuda.synchronize()
            dist.barrier()
        assert torch.equal(cumulative.cpu(), total)
        assert bool((waits >= 0).all()) and bool((combine_waits >= 0).all())
        if me.size > 1 and me.rank == 0:
            # The late rank cost its peers far more cycles than this rank itself did.
            assert waits[-1] > 10 * waits[0], waits


def zero_filled(me: Rank, seed: int) -> None:
    """A caller recovers by writing zeros over all symmetric memory; then all goes on."""
    with buffer_for(me, SHAPE, enable_shrink=True) as buffer:
        for number in range(4):
            inputs = make_inputs(SHAPE, seed + number, me.rank, me.size)
            recv, count, handle, *_ = dispatch(me, buffer, SHAPE, inputs)
            result = as_result(recv, count, handle)
            assert_dispatch(me, SHAPE, inputs, result, FP8, f"round {number}")
            out, *_ = combine(me, buffer, inputs, answers(me, SHAPE, seed + number, result), handle)
            assert_combined(SHAPE, inputs, out, f"round {number}")
            torch.cuda.synchronize()
            dist.barrier()
            if number % 2:
                dispatch(me, buffer, SHAPE, inputs, return_recv_hook=True)  # never received
                buffer.clean_low_latency_buffer(SHAPE.max_tokens, SHAPE.hidden, SHAPE.num_experts)
            else:
                buffer.get_local_buffer_tensor(dtype=torch.int8, use_rdma_buffer=True).zero_()
                torch.cuda.synchronize()
                buffer.low_latency_clean_mask_buffer()
            torch.cuda.synchronize()
            dist.barrier()


def masked_rank(me: Rank, seed: int) -> None:
    """All agree to leave the last rank out; the others are right without it, and then with it."""
    last = me.size - 1
    with buffer_for(me, SHAPE, enable_shrink=True) as buffer:
        status = torch.full((me.size,), 9, dtype=torch.int32, device=me.device)
        buffer.low_latency_query_mask_buffer(status)
        assert status.tolist() == [0] * me.size
        if me.rank != last:
            buffer.low_latency_update_mask_buffer(last, True)
            buffer.low_latency_query_mask_buffer(status)
            assert status.tolist() == [0] * last + [1]
            inputs = make_inputs(SHAPE, seed, me.rank, me.size)
            gone = inputs.topk_idx >= last * (SHAPE.num_experts // me.size)
            kept = Inputs(inputs.x, inputs.topk_idx.masked_fill(gone, -1), inputs.topk_weights)
            recv, count, handle, *_ = dispatch(me, buffer, SHAPE, inputs, BF16)
            result = as_result(recv, count, handle)
            assert int((result.layout_range[:, last] & 0xFFFFFFFF).sum()) == 0
            out, *_ = combine(me, buffer, inputs, answers(me, SHAPE, seed, result), handle)
            assert_combined(SHAPE, kept, out, "masked")
        torch.cuda.synchronize()
        dist.barrier()


def deterministic(me: Rank, seed: int) -> None:
    """The same inputs give the same bits, received rows and sums alike."""
    with buffer_for(me, SHAPE) as buffer:
        inputs = make_inputs(SHAPE, seed, me.rank, me.size)
        first: tuple[torch.Tensor, ...] | None = None
        rows = None
        for number in range(20):
            recv, count, handle, *_ = dispatch(me, buffer, SHAPE, inputs, num_sms=4 + number)
            result = as_result(recv, count, handle)
            if rows is None:
                rows = answers(me, SHAPE, seed, result)
            out, *_ = combine(me, buffer, inputs, rows, handle, num_sms=4 + number)
            torch.cuda.synchronize()
            valid = torch.arange(recv[0].shape[1], device=me.device) < count.unsqueeze(1)
            seen = (
                recv[0].view(torch.uint8)[valid],
                recv[1][valid],
                handle[0][valid],
                handle[1].clone(),
                out.view(torch.int16),
            )
            if first is None:
                first = tuple(t.clone() for t in seen)
            for got, want in zip(seen, first):
                assert torch.equal(got, want), f"round {number} differs"


def lifetimes(me: Rank, seed: int) -> None:
    """Destroyed in any order, made again, several alive at once."""
    for turn in range(3):
        with buffer_for(me, SHAPE) as one, buffer_for(me, SHAPE) as two:
            inputs = make_inputs(SHAPE, seed + turn, me.rank, me.size)
            for buffer in (one, two, one):
                recv, count, handle, *_ = dispatch(me, buffer, SHAPE, inputs)
                assert_dispatch(me, SHAPE, inputs, as_result(recv, count, handle), FP8, "two")
            torch.cuda.synchronize()
            dist.barrier()
            time.sleep(0.05 * ((me.rank + turn) % me.size))
    with (
        pytest.raises(RuntimeError, match="bytes"),
        buffer_for(me, SHAPE, num_rdma_bytes=4096) as small,
    ):
        dispatch(me, small, Shape(2048, 8, 32, 4096), make_inputs(SHAPE, seed, me.rank, me.size))


def bad_selections(me: Rank, seed: int) -> None:
    """What only the GPU can see is an error too, a moment later, and nothing is overrun."""
    for bad in ("range", "repeated"):
        with buffer_for(me, SHAPE) as buffer:
            inputs = make_inputs(SHAPE, seed, me.rank, me.size)
            topk_idx = inputs.topk_idx.clone()
            if bad == "range":
                topk_idx[3, 2] = SHAPE.num_experts + 5
            else:
                topk_idx[:] = 0
            dispatch(me, buffer, SHAPE, Inputs(inputs.x, topk_idx, inputs.topk_weights))
            torch.cuda.synchronize()
            message = str(SHAPE.num_experts + 5) if bad == "range" else "more often than"
            with pytest.raises(EPError, match=message):
                buffer.check()
            dist.barrier()
