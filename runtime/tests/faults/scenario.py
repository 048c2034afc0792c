"""What each rank does in a round, step by step, and how it went."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from ep_runtime import Buffer, EPError
from oracle import Inputs, Shape, expected_combine, expected_rows, make_inputs
from rank_tasks import answers, assert_one_rounding, compare_rows, tensors

from faults.injector import Injector

if TYPE_CHECKING:
    from collections.abc import Callable

    from faults.plan import Plan

# Enough operations after a fault for a copy of a message to come up where its tag is used again.
OPERATIONS_AFTER = 10


@dataclass
class Outcome:
    """How a rank fared. ``seconds`` by step; the error is that of the last of them."""

    rank: int
    seconds: dict[str, float] = field(default_factory=dict)
    wrong: str = ""
    error: str = ""
    peer: int | None = None
    phase: str = ""
    unnamed: str = ""  # an error that is not an EPError
    masked: list[int] = field(default_factory=list)


def shape_of(plan: Plan) -> Shape:
    return Shape(plan.size, 256, 4, 2 * plan.size, 8, (8,) * plan.size)


def group_within(timeout_s: float) -> dist.ProcessGroup:
    """The default group, whose gathers are bounded so: that is the caller's to set."""
    group = dist.group.WORLD
    assert group is not None
    store = dist.distributed_c10d._get_process_group_store(group)
    store.set_timeout(timedelta(seconds=timeout_s))
    return group


class Round:
    """One rank's way through the steps."""

    def __init__(self, plan: Plan, rank: int, device: str) -> None:
        self.plan, self.rank, self.device = plan, rank, torch.device(device)
        self.shape = shape_of(plan)
        self.outcome = Outcome(rank)
        self.injector = Injector(plan, rank)
        self.buffer: Buffer | None = None

    def run(self) -> Outcome:
        try:
            self._all_steps()
        except EPError as error:
            self.outcome.error = str(error)
            self.outcome.peer, self.outcome.phase = error.peer, error.phase
        except AssertionError as error:
            self.outcome.wrong = f"{error}" or "differs"
        except Exception as error:
            self.outcome.unnamed = f"{type(error).__name__}: {error}"
        if self.buffer is not None:
            self._step("destroy", self.buffer.destroy)
        self.injector.undo()
        return self.outcome

    def _step(self, step: str, do: Callable[[], Any]) -> Any:
        self.injector.reach(step)
        began = time.monotonic()
        try:
            return do()
        finally:
            took = time.monotonic() - began
            self.outcome.seconds[step] = max(took, self.outcome.seconds.get(step, 0.0))

    def _all_steps(self) -> None:
        self._step("create", self._create)
        self._operations(self.plan.seed)
        self._step("clean", self._clean)
        for number in range(1, 1 + OPERATIONS_AFTER):
            self._operations(self.plan.seed + number, "after ")

    def _create(self) -> None:
        shape = self.shape
        self.buffer = Buffer(
            group_within(self.plan.timeout_s),
            num_rdma_bytes=Buffer.get_low_latency_rdma_size_hint(
                shape.max_tokens, shape.hidden, shape.size, shape.experts
            ),
            low_latency_mode=True,
            num_qps_per_rank=shape.local,
            explicitly_destroy=True,
            enable_shrink=self.plan.shrink,
            backend=self.plan.backend,
            timeout_us=int(self.plan.timeout_s * 1e6),
        )

    def _clean(self) -> None:
        shape = self.shape
        assert self.buffer is not None
        self.buffer.clean_low_latency_buffer(shape.max_tokens, shape.hidden, shape.experts)
        self._settle()

    def _settle(self) -> None:
        """Let errors of kernels show: they are told by the next call."""
        assert self.buffer is not None
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.buffer.check()

    def _mask(self) -> tuple[int, ...]:
        assert self.buffer is not None
        if not self.plan.shrink:
            return ()
        status = torch.zeros(self.plan.size, dtype=torch.int32, device=self.device)
        self.buffer.low_latency_query_mask_buffer(status)
        masked = tuple(status.cpu().nonzero().flatten().tolist())
        self.outcome.masked = list(masked)
        return masked

    def _phases(self, name: str, call: Callable[[bool], Any]) -> Any:
        """Run an operation in two steps if the plan has hooks, else in one."""
        if not self.plan.hooks:
            result = self._step(name + " send", lambda: (call(False), self._settle())[0])
            return result[:-2]
        result = self._step(name + " send", lambda: call(True))
        self._step(name + " receive", lambda: (result[-1](), self._settle()))
        return result[:-2]

    def _operations(self, seed: int, prefix: str = "") -> None:
        buffer, shape, rank = self.buffer, self.shape, self.rank
        assert buffer is not None
        inputs = [make_inputs(shape, seed, source) for source in range(shape.size)]
        x, topk_idx, weights = (given.to(self.device) for given in tensors(inputs[rank]))
        recv_x, count, handle = self._phases(
            prefix + "dispatch",
            lambda hook: buffer.low_latency_dispatch(
                x,
                topk_idx,
                shape.max_tokens,
                shape.experts,
                use_fp8=False,
                return_recv_hook=hook,
            ),
        )
        heard = list(inputs)
        for gone in self._mask():
            heard[gone] = Inputs(*(values[:0] for values in vars(inputs[gone]).values()))
        rows = expected_rows(shape, heard, rank, fp8=False, round_scale=False)
        on_cpu = (*(tensor.cpu() for tensor in handle[:2]), *handle[2:])
        compare_rows(shape, rows, recv_x.cpu(), count.cpu(), on_cpu)
        answered = answers(shape, rank, heard, rows).to(self.device)
        (combined,) = self._phases(
            prefix + "combine",
            lambda hook: buffer.low_latency_combine(
                answered, topk_idx, weights, handle, return_recv_hook=hook
            ),
        )
        exact = expected_combine(shape, inputs[rank], masked=self._mask())
        assert_one_rounding(combined.cpu(), inputs[rank], *exact)


def take_part(rank: int, plan: Plan, device: str) -> Outcome:
    """Go through the round as one of its ranks."""
    return Round(plan, rank, device).run()
