"""Bad input gets one sentence that names the variable."""

from __future__ import annotations

import re

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils import inputs


def problems(**variables):
    return inputs.host_problems(variables, inputs.settings(variables))


def test_defaults_are_fine():
    assert problems() == []
    assert inputs.settings({}) == inputs.SETTINGS


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"epfleet_ibgda_mode": "fast"}, "epfleet_ibgda_mode is 'fast'; it must be one of auto"),
        ({"epfleet_ibgda_mode": True}, "epfleet_ibgda_mode"),
        ({"epfleet_reboot_policy": "sometimes"}, "epfleet_reboot_policy is 'sometimes'"),
        ({"epfleet_become": "perhaps"}, "epfleet_become"),
        ({"epfleet_failure_budget": -1}, "epfleet_failure_budget is -1"),
        ({"epfleet_failure_budget": True}, "epfleet_failure_budget"),
        ({"epfleet_serial": []}, "epfleet_serial"),
        ({"epfleet_serial": [1, "some"]}, "epfleet_serial"),
        ({"epfleet_serial": 0}, "epfleet_serial is 0"),
        ({"epfleet_pip_args": "--no-index"}, "epfleet_pip_args"),
        ({"epfleet_pip_args": [1]}, "epfleet_pip_args"),
        ({"nvshmem_version": "3.2.5"}, "nvshmem_version is 3.2.5; .* need 3.3.9 or newer"),
        ({"nvshmem_version": "newest"}, "nvshmem_version: 'newest' is not a version"),
        ({"ep_benchmark_hidden": 7100}, "ep_benchmark_hidden is 7100; .* multiple of 128"),
        ({"ep_benchmark_hidden": "wide"}, "ep_benchmark_hidden is 'wide'"),
        ({"ep_benchmark_hidden": 0}, "ep_benchmark_hidden is 0"),
        ({"ep_benchmark_num_tokens": 0}, "ep_benchmark_num_tokens is 0"),
        ({"ep_benchmark_num_topk": 33, "ep_benchmark_num_experts": 64}, "num_topk is 33"),
        ({"ep_benchmark_num_topk": 8, "ep_benchmark_num_experts": 4}, "num_topk is 8"),
        ({"ep_benchmark_dtype": "fp4"}, "ep_benchmark_dtype is 'fp4'"),
    ],
)
def test_one_sentence_names_the_variable(variables, words):
    (problem,) = problems(**variables)
    assert re.search(words, problem)
    assert problem.endswith(".")


@pytest.mark.parametrize(
    "variables",
    [
        {"epfleet_ibgda_mode": False},  # YAML's reading of a bare off
        {"epfleet_become": "false"},  # -e epfleet_become=false
        {"epfleet_failure_budget": "2"},
        {"nvshmem_version": "3.3.9"},
        {"nvshmem_version": "3.10.0"},
        {"ep_benchmark_hidden": "7168", "ep_benchmark_num_topk": 32},
        {"ep_benchmark_ranks_per_host": 0},
    ],
)
def test_right_input(variables):
    assert problems(**variables) == []


def test_a_bare_off_is_off():
    variables = {"epfleet_ibgda_mode": False}
    settings = inputs.settings(variables)
    inputs.host_problems(variables, settings)
    assert settings["ibgda_mode"] == "off"


def host(major=None, gpus=0, **variables):
    facts = {"cuda": {"major": major}, "nvidia": {"gpu_count": gpus}}
    return {"epfleet": facts, "ep_benchmark_num_experts": 32, **variables}


def test_a_fleet_that_fits():
    assert (
        inputs.fleet_problems(
            {"a": host(13, 8), "b": host(13, 8), "c": host(None, 8), "d": host(13, 8)}
        )
        == []
    )


def test_two_cuda_majors():
    (problem,) = inputs.fleet_problems({"a": host(12, 8), "b": host(13, 8)})
    assert "nvshmem_cuda_major" in problem
    assert "CUDA 12: a; CUDA 13: b" in problem


def test_the_variable_speaks_before_the_facts():
    fleet = {"a": host(12, 8, nvshmem_cuda_major=13), "b": host(13, 8)}
    assert inputs.fleet_problems(fleet) == []
    fleet["b"]["nvshmem_cuda_major"] = 12
    assert len(inputs.fleet_problems(fleet)) == 1


def test_many_hosts_are_not_all_listed():
    fleet = {f"h{i}": host(12, 1) for i in range(31)}
    (problem,) = inputs.fleet_problems({**fleet, "z": host(13, 1)})
    assert "h4 and 26 more" in problem


def test_different_numbers_of_ranks():
    fleet = {"a": host(gpus=8), "b": host(gpus=8), "c": host(gpus=4)}
    (problem,) = inputs.fleet_problems(fleet)
    assert "ep_benchmark_ranks_per_host" in problem
    assert "4 on c; 8 on a, b" in problem
    assert inputs.fleet_problems(fleet, benchmark=False) == []


@pytest.mark.parametrize(
    ("fleet", "ranks"),
    [
        ({"a": host(gpus=3)}, 3),
        ({"a": host(), "b": host(), "c": host()}, 6),
        ({"a": host(gpus=8, ep_benchmark_ranks_per_host=5)}, 5),
    ],
)
def test_experts_that_do_not_divide(fleet, ranks):
    (problem,) = inputs.fleet_problems(fleet)
    assert "ep_benchmark_num_experts is 32" in problem
    assert f"{ranks} on {len(fleet)} hosts" in problem
