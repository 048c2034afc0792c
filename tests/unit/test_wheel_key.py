"""A key tells apart what must not share a wheel."""

from __future__ import annotations

import pytest
from ansible_collections.epfleet.expert_parallel.plugins.module_utils.wheel_key import (
    key_inputs,
    wheel_key,
)

HOST = {"machine": "x86_64", "libc": "glibc-2.36", "abi": "cpython-311-x86_64-linux-gnu"}
CUDA = {
    "major": 13,
    "version": "13.0.88",
    "architectures": ["100", "90"],
    "compiler": "/usr/local/cuda/bin/nvcc",
}


def key(source="s", host=None, cuda=None):
    return wheel_key(key_inputs(source, {**HOST, **(host or {})}, cuda))


def test_equal_hosts_share_a_key():
    assert key() == key()
    assert key(cuda=CUDA) == key(cuda={**CUDA, "architectures": ["90", "100"], "major": "13"})


@pytest.mark.parametrize(
    "other",
    [
        key(source="t"),
        key(host={"machine": "aarch64"}),
        key(host={"libc": "glibc-2.39"}),
        key(host={"abi": "cpython-313-x86_64-linux-gnu"}),
        key(cuda=CUDA),
    ],
)
def test_different_hosts_do_not(other):
    assert other != key()


def test_gpus_and_toolkits_differ():
    changes = (
        {},
        {"major": 12},
        {"version": "13.1.80"},
        {"architectures": []},
        {"nvshmem": {"prefix": "/a", "version": "3.4.5"}},
        {"nvshmem": {"prefix": "/a", "version": "3.8.0"}},
    )
    assert len({key(cuda={**CUDA, **change}) for change in changes}) == len(changes)


def test_where_the_compiler_comes_from_does_not_matter():
    assert key(cuda=CUDA) == key(cuda={**CUDA, "compiler": "pypi"})


def test_where_nvshmem_lies_does_not_matter():
    copies = [{"prefix": prefix, "version": "3.4.5"} for prefix in ("/a", "/b")]
    assert len({key(cuda={**CUDA, "nvshmem": copy}) for copy in copies}) == 1


def test_a_key_is_a_safe_name():
    name = key(host={"machine": "a/b c", "abi": "x.y"})
    assert name.startswith("a_b_c-x_y-cpu-")
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_")
