"""What each rank does when one of them goes silent or dies."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import torch
from api_tasks import SHAPE, answers, as_result, buffer_for, combine, dispatch
from cases import Inputs, exact_combine, make_inputs
from ep_runtime.errors import EPTimeoutError
from matrix_tasks import assert_within_one_rounding

if TYPE_CHECKING:
    from pool import Rank

WAIT_US = 700_000


def one_does_not_come(me: Rank, seed: int, phase: str, die: bool, shrink: bool) -> str:
    """The last rank stops before ``phase``. What the others report, or "right without it"."""
    victim = me.size - 1
    with buffer_for(me, SHAPE, timeout_us=WAIT_US, enable_shrink=shrink) as buffer:
        inputs = make_inputs(SHAPE, seed, me.rank, me.size)
        if phase == "combine":
            recv, count, handle, *_ = dispatch(me, buffer, SHAPE, inputs, "bf16")
            rows = answers(me, SHAPE, seed, as_result(recv, count, handle))
        torch.cuda.synchronize()
        if me.rank == victim:
            if die:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(3 * WAIT_US / 1e6)
            return "silent"
        started = time.monotonic()
        if phase == "dispatch":
            recv, count, handle, *_ = dispatch(me, buffer, SHAPE, inputs, "bf16")
            torch.cuda.synchronize()
            if not shrink:
                return _expect_timeout(buffer, victim, "dispatch receive", started)
            rows = answers(me, SHAPE, seed, as_result(recv, count, handle))
        out, *_ = combine(me, buffer, inputs, rows, handle)
        torch.cuda.synchronize()
        if not shrink:
            return _expect_timeout(buffer, victim, "combine receive", started)
        assert time.monotonic() - started < 4 * WAIT_US / 1e6 + 2
        status = torch.zeros(me.size, dtype=torch.int32, device=me.device)
        buffer.low_latency_query_mask_buffer(status)
        assert status.tolist() == [0] * victim + [1]
        gone = inputs.topk_idx >= victim * (SHAPE.num_experts // me.size)
        kept = Inputs(inputs.x, inputs.topk_idx.masked_fill(gone, -1), inputs.topk_weights)
        exact, magnitude = exact_combine(SHAPE, kept)
        assert_within_one_rounding(out.cpu(), exact, magnitude, SHAPE.num_topk, "survivors")
        return "right without it"


def _expect_timeout(buffer: object, victim: int, phase: str, started: float) -> str:
    try:
        buffer.check()  # type: ignore[attr-defined]
    except EPTimeoutError as error:
        assert error.peer == victim, error
        assert error.phase == phase, error
        assert error.waited_us >= WAIT_US
        assert time.monotonic() - started < 2 * WAIT_US / 1e6 + 2
        return str(error)
    raise AssertionError("no error was reported")
