"""Plans are made once for what callers repeat. What they do is tested on GPUs (tests/cuda)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ep_runtime.backends.base import CombineRequest, DispatchRequest
from ep_runtime.call_plans import CallPlans


class Engine:
    """Counts the plans that are made, and says that none fits."""

    def __init__(self, *, supported: bool = True) -> None:
        self.supported, self.asked, self.calls = supported, 0, 0

    def plan_setting(self, *_: Any) -> Any:
        self.asked += 1
        return self if self.supported else None

    def dispatch(self, *_: Any) -> Any:
        return self._call

    def combine(self, *_: Any) -> Any:
        return self._call

    def _call(self, *_: Any) -> None:
        self.calls += 1


class Stream:
    """A launcher that puts everything on stream 7, or has something to order first."""

    def __init__(self) -> None:
        self.current: int | None = 7

    def direct_stream(self, *_: Any) -> int | None:
        return self.current


def dispatch_request(hidden: int = 512) -> DispatchRequest:
    x = torch.zeros(3, hidden, dtype=torch.bfloat16)
    selections = torch.zeros(3, 2, dtype=torch.int64)
    return DispatchRequest(x, selections, 8, 4, None, None, True, False, False, 1000, 0)


def combine_request() -> CombineRequest:
    x = torch.zeros(4, 8, 512, dtype=torch.bfloat16)
    nothing = torch.zeros(0)
    return CombineRequest(
        x, nothing, nothing, nothing, nothing, 8, 4, False, False, nothing, None, 1000, 0
    )


@pytest.fixture
def engine() -> Engine:
    return Engine()


def plans(engine: Engine, stream: Any = None) -> CallPlans:
    backend: Any = SimpleNamespace(
        engine=engine, device=torch.device("cuda", 0), size=1, num_sms=132
    )
    return CallPlans(backend, stream or Stream())


def test_a_call_without_a_plan_is_not_taken_over(engine: Engine) -> None:
    assert plans(engine).dispatch(("dispatch", 8, 4), False, *[None] * 4) is None
    assert engine.calls == 0


def test_what_is_repeated_is_planned_once(engine: Engine) -> None:
    made = plans(engine)
    for _ in range(5):
        made.remember_dispatch(("dispatch", 8, 4), dispatch_request())
        made.remember_combine(("combine", 8, 512, 4), combine_request())
        assert made.dispatch(("dispatch", 8, 4), False, *[None] * 4) is None
    assert engine.asked == 2
    assert engine.calls == 5


def test_another_hidden_size_is_planned_anew(engine: Engine) -> None:
    made = plans(engine)
    for hidden in (512, 1024, 1024):
        made.remember_dispatch(("dispatch", 8, 4), dispatch_request(hidden))
    assert engine.asked == 2


def test_what_needs_ordering_is_not_taken_over(engine: Engine) -> None:
    stream = Stream()
    made = plans(engine, stream)
    made.remember_dispatch(("dispatch", 8, 4), dispatch_request())
    stream.current = None
    assert made.dispatch(("dispatch", 8, 4), False, *[None] * 4) is None
    assert engine.calls == 0


def test_a_torch_that_lacks_something_is_asked_once() -> None:
    engine = Engine(supported=False)
    made = plans(engine)
    for number in range(3):
        made.remember_dispatch(("dispatch", number, 4), dispatch_request())
    assert engine.asked == 1


def test_a_time_limit_of_its_own_for_each_call_does_not_fill_the_memory(engine: Engine) -> None:
    made = plans(engine)
    for timeout_us in range(1, 300):
        made.remember_dispatch(("dispatch", timeout_us), dispatch_request())
    assert len(made._plans) <= 64
    assert len(made._plans) == len(made._hidden)
