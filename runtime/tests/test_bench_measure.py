import time

import numpy as np
import torch
from ep_runtime.bench import kinds, measure
from ep_runtime.bench.kinds import HookedOperations
from ep_runtime.bench.measure import Operations
from ep_runtime.bench.pace import Pace

CPU = torch.device("cpu")


def alone(iters, warmup):
    return Pace(iters, warmup, 0.0, share=lambda mine: [mine])


def sleeping(calls, dispatch_s=0.002, combine_s=0.004):
    """Operations that take known times and say when they are called."""

    def dispatch(waits):
        calls.append("dispatch")
        if waits is not None:
            waits += 1
        time.sleep(dispatch_s)
        return "handle"

    def combine(handle, waits):
        if waits is not None:
            waits += 2
        assert handle == "handle"
        calls.append("combine")
        time.sleep(combine_s)

    return Operations(dispatch, combine, barrier=lambda: calls.append("barrier"))


def test_rounds_order_and_samples_on_the_cpu():
    calls, finished = [], []
    measured = measure.measure(sleeping(calls), CPU, 3, alone(5, 2), finished.append)
    # Every timed stretch has a barrier right before it and none inside.
    behind = ["barrier", "dispatch", "barrier", "combine"]
    assert calls == [*behind, "barrier", "dispatch", "combine"] * 7
    assert sum(finished) == 7
    assert (measured.rounds.warmup, measured.rounds.timed) == (2, 5)
    assert measured.rounds.steady is None
    # Counted once in each timed call, never in warm-up or in the pair.
    assert measured.waits.dispatch.tolist() == [[1] * 3] * 5
    assert measured.waits.combine.tolist() == [[2] * 3] * 5
    samples = measured.samples
    assert len(samples.barrier) == 15
    for values, least in ((samples.dispatch, 2e3), (samples.combine, 4e3), (samples.pair, 6e3)):
        assert len(values) == 5
        assert least <= min(values)


def test_rounds_that_are_added_are_measured_like_the_first():
    """A pace that wants three rounds, then two more, then no more."""

    class InParts(Pace):
        def more_rounds(self, times_us):
            return {0: 3, 3: 2}.get(len(times_us), 0), None

    measured = measure.measure(
        sleeping([], 0, 0), CPU, 2, InParts(3, 0, 1.0, share=lambda mine: [mine])
    )
    assert len(measured.samples.pair) == measured.rounds.timed == 5
    assert measured.waits.dispatch.tolist() == [[1, 1]] * 5
    assert len(measured.samples.barrier) == 15


def hooked(calls):
    def step(name, seconds, result):
        def call(*arguments):
            assert len(arguments) == (name == "combine_send")
            calls.append(name)
            time.sleep(seconds)
            return result

        return call

    return HookedOperations(
        step("dispatch_send", 0.002, ("handle", step("dispatch_receive", 0.003, None))),
        step("combine_send", 0.004, step("combine_receive", 0.005, None)),
    )


def test_the_other_kinds_on_the_cpu():
    calls, by_hook = [], []
    found = kinds.others(
        sleeping(calls),
        hooked(by_hook),
        CPU,
        rounds=3,
        has_kernels=False,
        agree=lambda text: [text],
    )
    # Back to back: no barrier between the calls.
    assert calls == ["barrier", *["dispatch", "combine"] * 6, "barrier"]
    phases = ["dispatch_send", "dispatch_receive", "combine_send", "combine_receive"]
    assert by_hook == phases * 3
    times = found["back_to_back"].times
    for name, least in (("dispatch", 2e3), ("combine", 4e3), ("pair", 6e3)):
        assert len(times[name]) == 3
        assert min(times[name]) >= least
    hook = found["hook"].times
    assert list(hook) == phases
    assert all(min(hook[name]) >= 2e3 + 1e3 * place for place, name in enumerate(phases))
    assert found["kernel"].reason == "this backend has no kernels of its own"
    assert kinds.main_kind(CPU) == "end_to_end"


def test_a_barrier_takes_the_skew_out_of_the_times():
    """A peer that comes 20 ms late makes the barrier long and the call no longer."""
    calls = []
    operations = sleeping(calls, 0.001, 0.001)
    late = Operations(operations.dispatch, operations.combine, barrier=lambda: time.sleep(0.02))
    samples = measure.measure(late, CPU, 1, alone(5, 0)).samples
    assert min(samples.barrier) >= 20e3
    assert np.median(samples.dispatch) < 20e3
