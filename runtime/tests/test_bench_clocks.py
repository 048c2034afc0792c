"""Timing on a device, on a made one whose calls take known times; a real one: tests/cuda."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from ep_runtime.bench import clocks, device_time, kinds
from ep_runtime.bench.kinds import HookedOperations
from ep_runtime.bench.measure import Operations, measure
from ep_runtime.bench.pace import Pace
from ep_runtime.bench.waits import WaitCounts

GPU = torch.device("cuda")


class Device:
    """Calls are enqueued on it and take time there; events take its time."""

    def __init__(self, monkeypatch):
        self.now_ms, self.log = 0.0, []
        device = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                self.at = device.now_ms

            def synchronize(self):
                device.log.append("wait")

            def elapsed_time(self, end):
                return end.at - self.at

        class Graph:
            def __init__(self):
                self.calls = []

            def replay(self):
                device.log.append("replay")
                device.now_ms += sum(self.calls)

        class Capture:
            def __init__(self, graph):
                self.graph = graph

            def __enter__(self):
                device.capturing = self.graph

            def __exit__(self, *_):
                device.capturing = None

        self.capturing = None
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
        monkeypatch.setattr(torch.cuda, "graph", Capture)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: self.log.append("sync"))
        monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: self.log.append("spin"))

    def call(self, name, ms, result=None):
        def run(*_):
            if self.capturing is not None:
                self.capturing.calls.append(ms)
            else:
                self.log.append(name)
                self.now_ms += ms
            return result

        return run

    def operations(self):
        return Operations(
            self.call("dispatch", 0.010, "handle"),
            self.call("combine", 0.020),
            barrier=lambda: self.log.append("barrier"),
        )

    def hooked(self):
        return HookedOperations(
            self.call("send", 0.001, ("handle", self.call("receive", 0.002))),
            self.call("send back", 0.003, self.call("receive back", 0.004)),
        )


@pytest.fixture
def device(monkeypatch):
    return Device(monkeypatch)


def test_rounds_are_enqueued_in_batches_behind_a_barrier_and_a_pair(device):
    chain = clocks.DeviceChain(device.operations().barrier, device.operations().pair)
    times = chain.run(device.operations().round() for _ in range(11))
    pair = ["dispatch", "combine"]
    head = ["sync", "barrier", "spin", *pair]
    # Three operations a round: dispatch, combine, and both; the host waits after a batch only.
    assert device.log == [*head, *pair * 16, "sync", *head, *pair * 6, "sync"]
    assert {name: len(values) for name, values in times.items()} == {
        **dict.fromkeys(("dispatch", "combine", "pair"), 11)
    }
    assert times["dispatch"] == pytest.approx([10.0] * 11)
    assert times["combine"] == pytest.approx([20.0] * 11)
    assert times["pair"] == pytest.approx([30.0] * 11)
    assert len(chain.barriers_us) == 2


def test_the_lead_of_the_host_is_learned_and_bounded(device, monkeypatch):
    spins = []
    monkeypatch.setattr(torch.cuda, "_sleep", spins.append)
    clock = iter([0.0, 0.004, *([0.0, 9.0] * 3)])
    fake = SimpleNamespace(perf_counter=lambda: next(clock), perf_counter_ns=lambda: 0)
    monkeypatch.setattr(clocks, "time", fake)
    for expected_s in (0.008, 0.05):  # twice 4 ms; 9 s are too much
        chain = clocks.DeviceChain(lambda: None, lambda: None)
        chain.calibrate(lambda count: (iter(()) for _ in range(count)))
        chain.run([iter(())])
        assert spins[-1] == int(expected_s * 2e9)


def test_a_run_on_a_device(device, monkeypatch):
    asked = Pace(20, 10, 0.0, share=lambda mine: [mine])
    alone = Operations(
        lambda waits: device.call("dispatch", 0.010, "handle")(),
        lambda handle, waits: device.call("combine", 0.020)(),
        barrier=lambda: device.log.append("barrier"),
    )
    # The made device has the host's memory.
    allocate = WaitCounts.allocate
    monkeypatch.setattr(
        WaitCounts, "allocate", lambda calls, ranks, _: allocate(calls, ranks, torch.device("cpu"))
    )
    measured = measure(alone, GPU, 4, asked)
    assert measured.samples.pair == pytest.approx([30.0] * 20)
    assert (measured.rounds.warmup, measured.rounds.timed) == (10, 20)
    assert tuple(measured.waits.dispatch.shape) == (20, 4)
    assert len(measured.samples.barrier) == 3  # of the timed batches alone


def others(device, agree=lambda text: [text], has_kernels=True):
    return kinds.others(
        device.operations(), device.hooked(), GPU, 5, has_kernels=has_kernels, agree=agree
    )


def test_all_kinds_on_a_device(device):
    found = others(device)
    assert set(found) == {"end_to_end", "kernel", "hook"}
    assert kinds.main_kind(GPU) == "back_to_back"
    hook = found["hook"].times
    assert {name: values[0] for name, values in hook.items()} == pytest.approx(
        {"dispatch_send": 1, "dispatch_receive": 2, "combine_send": 3, "combine_receive": 4}
    )
    kernel = found["kernel"].times
    assert {name: values[0] for name, values in kernel.items()} == pytest.approx(
        {"dispatch": 10, "combine": 20, "pair": 30}
    )
    assert all(len(values) == 20 for values in kernel.values())
    assert len(found["end_to_end"].times["pair"]) == 5


def test_end_to_end_waits_for_the_device_and_meets_before_each_call(device):
    kinds._end_to_end(device.operations(), 1)
    assert device.log == [
        *("sync", "barrier", "dispatch", "sync"),
        *("sync", "barrier", "combine", "sync"),
        *("sync", "barrier", "dispatch", "combine", "sync"),
    ]


def test_graphs_are_replayed_by_all_or_by_none(device):
    found = others(device, agree=lambda text: [text, "out of memory"])
    assert found["kernel"].reason == "rank 1 could not capture a CUDA graph: out of memory"
    assert "replay" not in device.log


def test_a_capture_that_fails_is_told_to_the_others(device, monkeypatch):
    told = []

    def fail(call, calls=0):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(device_time, "captured", fail)
    found = others(device, agree=lambda text: told.append(text) or [text])
    assert told == ["operation not permitted when stream is capturing"]
    assert found["kernel"].times == {}


def test_a_backend_without_kernels_says_so(device):
    assert others(device, has_kernels=False)["kernel"].reason.startswith("this backend has no")
