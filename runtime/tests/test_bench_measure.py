import time

import torch
from ep_runtime.bench.measure import Operations, measure
from ep_runtime.bench.waits import WaitCounts


def test_rounds_order_and_samples_on_the_cpu():
    calls, finished = [], []

    def dispatch(waits):
        calls.append("dispatch")
        if waits is not None:
            waits += 1
        time.sleep(0.002)
        return "handle"

    def combine(handle, waits):
        if waits is not None:
            waits += 2
        assert handle == "handle"
        calls.append("combine")
        time.sleep(0.004)

    counts = WaitCounts.allocate(5, 3, torch.device("cpu"))
    samples = measure(
        Operations(dispatch, combine, barrier=lambda: calls.append("barrier")),
        torch.device("cpu"),
        iters=5,
        warmup=2,
        waits=counts,
        advance=finished.append,
    )
    # Every timed stretch has a barrier right before it and none inside.
    alone = ["barrier", "dispatch", "barrier", "combine"]
    assert calls == [*alone, "barrier", "dispatch", "combine"] * 7
    assert sum(finished) == 7
    # Counted once in each timed call, never in warm-up or in the pair.
    assert counts.dispatch.tolist() == [[1] * 3] * 5
    assert counts.combine.tolist() == [[2] * 3] * 5
    assert len(samples.barrier) == 15
    for values, least in ((samples.dispatch, 2e3), (samples.combine, 4e3), (samples.pair, 6e3)):
        assert len(values) == 5
        assert least <= min(values)
