"""What the wire and the model say of a run, and why where they say nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from bench_reports import PARAMETERS, make_report
from ep_runtime.bench import expected
from ep_runtime.bench.expected import Rates
from ep_runtime.bench.model import Fleet, predict

SHAPE = replace(PARAMETERS, num_tokens=128, hidden=7168, num_experts=256, num_topk=8)


def test_the_wire_takes_the_slower_of_both_ways():
    report = make_report(ranks=16, per_host=8, parameters=SHAPE)
    figures = {"same_host_bytes": 900e3, "other_hosts_bytes": 250e3}
    assert expected.wire_us(report, figures, Rates(450.0, 50.0)) == pytest.approx(5.0)
    assert expected.wire_us(report, figures, Rates(90.0, 50.0)) == pytest.approx(10.0)


def test_the_model_is_asked_for_the_runs_own_shape():
    report = make_report(ranks=16, per_host=8, parameters=SHAPE)
    found = expected.model_us(report, report["parameters"], Rates(nic_gbps=25.0))
    wanted = predict(Fleet(128, 7168, 256, 8, gpus_per_node=8, nic_gbps=25.0), 16)
    assert found["dispatch"] == wanted.dispatch_us
    assert found["combine"] == wanted.combine_us
    assert found["pair"] == wanted.dispatch_us + wanted.combine_us
    assert expected.no_model(report) == ""


def test_the_model_and_the_counted_bytes_agree_about_the_wire():
    """Two ways to the bytes between hosts: expectations, and counting what was drawn."""
    report = make_report(ranks=16, per_host=8, parameters=SHAPE)
    wanted = predict(Fleet(128, 7168, 256, 8), 16)
    for name, traffic in (("dispatch", wanted.dispatch), ("combine", wanted.combine)):
        # The busiest rank has some more than the mean.
        assert 1.0 <= report[name]["other_hosts_bytes"] / traffic.nic_bytes < 1.1


@pytest.mark.parametrize(
    ("changes", "parameters", "wire", "model"),
    [
        ({"backend": "reference"}, PARAMETERS, "the reference backend", "the reference backend"),
        ({"ranks": 1}, PARAMETERS, "nothing leaves", "nothing leaves"),
        ({}, replace(PARAMETERS, dtype="bf16"), "", "it does not cover dtype bf16"),
        ({}, replace(PARAMETERS, routing="hot"), "", "it does not cover routing hot"),
    ],
)
def test_where_nothing_is_known_the_reason_is_given(changes, parameters, wire, model):
    report = make_report(parameters=parameters, **changes)
    assert expected.no_wire(report).startswith(wire)
    assert expected.no_model(report).startswith(model)
    assert expected.model_us(report, report["parameters"], Rates()) == {}
    assert (expected.wire_us(report, report["dispatch"], Rates()) is None) == bool(wire)


def test_ranks_that_share_a_gpu_have_no_wire_between_them():
    report = make_report()
    for entry in report["per_rank"]:
        entry["gpu"] = "0000:1b:00.0"
    assert expected.no_wire(report) == "ranks share a GPU"


def test_hosts_that_differ_have_no_model():
    report = make_report(ranks=6, per_host=4, parameters=replace(PARAMETERS, num_experts=66))
    assert expected.model_us(report, report["parameters"], Rates()) == {}
