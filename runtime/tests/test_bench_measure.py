import time

import torch
from ep_runtime.bench.measure import Operations, measure


def test_rounds_order_and_samples_on_the_cpu():
    calls, finished = [], []

    def dispatch():
        calls.append("dispatch")
        time.sleep(0.002)
        return "handle"

    def combine(handle):
        assert handle == "handle"
        calls.append("combine")
        time.sleep(0.004)

    samples = measure(
        Operations(dispatch, combine, barrier=lambda: calls.append("barrier")),
        torch.device("cpu"),
        iters=5,
        warmup=2,
        advance=finished.append,
    )
    # Every timed stretch has a barrier right before it and none inside.
    alone = ["barrier", "dispatch", "barrier", "combine"]
    assert calls == [*alone, "barrier", "dispatch", "combine"] * 7
    assert sum(finished) == 7
    for values, least in ((samples.dispatch, 2e3), (samples.combine, 4e3), (samples.pair, 6e3)):
        assert len(values) == 5
        assert least <= min(values)
