"""What each rank does in the tests of planned calls: a shape's second call leaves Python out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from api_tasks import (
    BF16,
    FP8,
    SHAPE,
    answers,
    as_result,
    assert_combined,
    assert_dispatch,
    buffer_for,
    combine,
    dispatch,
)
from cases import make_inputs
from ep_runtime import call_plans
from ep_runtime.errors import EPTimeoutError

if TYPE_CHECKING:
    from pool import Rank


class Counted:
    """Counts the calls that plans took over."""

    def __init__(self, buffer: Any) -> None:
        self.calls = 0
        for name in ("dispatch", "combine"):
            setattr(buffer._plans, name, self._counting(getattr(buffer._plans, name)))

    def _counting(self, call: Any) -> Any:
        def counting(*arguments: Any) -> Any:
            done = call(*arguments)
            self.calls += done is not None
            return done

        return counting


def planned(me: Rank, seed: int) -> None:
    """Planned calls give what the first one gives, in every mode that has plans."""
    local = SHAPE.num_experts // me.size
    with buffer_for(me, SHAPE) as buffer:
        assert isinstance(buffer._plans, call_plans.CallPlans)
        counted = Counted(buffer)
        for form in (FP8, BF16):
            for hook_mode in (False, True, False):
                before = counted.calls
                for number in range(3):
                    where = f"{form}, hook {hook_mode}, call {number}"
                    inputs = make_inputs(SHAPE, seed + number, me.rank, me.size)
                    stats = torch.zeros(local, dtype=torch.int32, device=me.device)
                    recv, count, handle, event, hook = dispatch(
                        me,
                        buffer,
                        SHAPE,
                        inputs,
                        form,
                        return_recv_hook=hook_mode,
                        cumulative_local_expert_recv_stats=stats,
                    )
                    assert event.event is None
                    if hook_mode:
                        hook()
                    result = as_result(recv, count, handle)
                    assert_dispatch(me, SHAPE, inputs, result, form, where)
                    assert torch.equal(stats, count), where
                    rows = answers(me, SHAPE, seed + number, result)
                    out = torch.empty_like(inputs.x, device=me.device) if number == 2 else None
                    got, _, hook = combine(
                        me, buffer, inputs, rows, handle, return_recv_hook=hook_mode, out=out
                    )
                    if hook_mode:
                        hook()
                    assert out is None or got is out
                    assert_combined(SHAPE, inputs, got, where)
                assert counted.calls - before >= 4, f"{form}, hook {hook_mode}: plans were not used"


def not_as_planned(me: Rank, seed: int) -> None:
    """A call that a plan does not fit is refused as the first one would be, and harms nothing."""
    with buffer_for(me, SHAPE) as buffer:
        inputs = make_inputs(SHAPE, seed, me.rank, me.size)
        x, topk_idx = inputs.x.to(me.device), inputs.topk_idx.to(me.device)
        weights = inputs.topk_weights.to(me.device)
        sizes = (SHAPE.max_tokens, SHAPE.num_experts)
        for _ in range(2):
            recv, count, handle, _, _ = buffer.low_latency_dispatch(x, topk_idx, *sizes)
            rows = answers(me, SHAPE, seed, as_result(recv, count, handle))
            buffer.low_latency_combine(rows, topk_idx, weights, handle)
        counted = Counted(buffer)
        double = torch.cat([x, x], 1)
        for wrong_x, wrong_topk, said in (
            (x.float(), topk_idx, "bfloat16"),
            (double[:, ::2], topk_idx, "contiguous"),
            (x.cpu(), topk_idx, "must be on"),
            (x, topk_idx.int(), "int64"),
            (x, topk_idx.cpu(), "must be on"),
            (x, topk_idx[:-1], "a row for each"),
            (torch.cat([x] * 9), torch.cat([topk_idx] * 9), "num_max_dispatch_tokens_per_rank"),
        ):
            with pytest.raises(RuntimeError, match=said):
                buffer.low_latency_dispatch(wrong_x, wrong_topk, *sizes)
        for wrong_rows, wrong_weights, wrong_handle, said in (
            (rows[:, :-1], weights, handle, "shape"),
            (rows.float(), weights, handle, "bfloat16"),
            (rows, weights.double(), handle, "float32"),
            (rows, weights[:-1], handle, "a row for each"),
            (rows, weights, (handle[0].cpu(), *handle[1:]), "src_info"),
            (rows, weights, (handle[0], handle[1].int(), *handle[2:]), "layout_range"),
        ):
            with pytest.raises(RuntimeError, match=said):
                buffer.low_latency_combine(wrong_rows, topk_idx, wrong_weights, wrong_handle)
        assert counted.calls == 0
        recv, count, handle, _, _ = buffer.low_latency_dispatch(x, topk_idx, *sizes)
        result = as_result(recv, count, handle)
        assert_dispatch(me, SHAPE, inputs, result, FP8, "after refusals")
        assert counted.calls == 1


def another_stream(me: Rank, seed: int) -> None:
    """Planned calls keep their order when the caller changes streams in between."""
    with buffer_for(me, SHAPE) as buffer:
        streams = [torch.cuda.Stream() for _ in range(2)]
        for number in range(6):
            inputs = make_inputs(SHAPE, seed + number, me.rank, me.size)
            stream = streams[number // 2 % 2]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                recv, count, handle, _, _ = dispatch(me, buffer, SHAPE, inputs)
                result = as_result(recv, count, handle)
                assert_dispatch(me, SHAPE, inputs, result, FP8, f"call {number}")
            torch.cuda.current_stream().wait_stream(stream)


def recorded_problem(me: Rank, seed: int) -> None:
    """What a planned call's kernel records is raised by the next call, planned too."""
    with buffer_for(me, SHAPE, timeout_us=300_000) as buffer:
        inputs = make_inputs(SHAPE, seed, me.rank, me.size)
        for _ in range(2):
            dispatch(me, buffer, SHAPE, inputs)
            torch.cuda.synchronize()
        if me.rank == 0:
            dispatch(me, buffer, SHAPE, inputs)  # nobody else comes
            torch.cuda.synchronize()
            with pytest.raises(EPTimeoutError):
                dispatch(me, buffer, SHAPE, inputs)
