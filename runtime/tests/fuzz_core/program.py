"""Gives the functions of a ``_core`` that was built with sanitizers any arguments.

A sanitizer ends the process at the first access or arithmetic that is not defined. Here it is
checked besides that the functions raise what they say, and that results are sound. Started by
``scripts/fuzz_core``, since the sanitizers must be loaded before Python.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from types import ModuleType

MOST_BYTES = 1 << 24


def load(path: str) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader("_core", path)
    spec = importlib.util.spec_from_file_location("_core", path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


core = load(sys.argv[1])
examples = settings(
    max_examples=int(sys.argv[2]),
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)

edges = st.sampled_from(
    [0, 1, 2, 127, 128, 1024, 1025, 16384, 16385, 65535, 65536, 2**31 - 1, 2**31, 2**32, 2**63 - 1]
)
numbers = st.one_of(edges, edges.map(lambda n: -n), st.integers(-(2**64), 2**64), st.integers(0, 9))
anything = st.one_of(numbers, st.sampled_from([None, "8", 1.5, True, [8], b"8"]))


@examples
@given(st.lists(anything, min_size=4, max_size=4), st.lists(numbers, min_size=3, max_size=3))
def layouts(arguments: list[Any], place: list[int]) -> None:
    try:
        layout = core.low_latency_layout(*arguments)
    except (ValueError, TypeError):
        return
    regions = [
        layout.ack,
        layout.barrier,
        layout.dispatch_count,
        layout.combine_flag,
        layout.dispatch_row,
        layout.combine_row,
        layout.total_bytes,
    ]
    assert regions == sorted(regions)
    assert regions[0] == 0
    assert all(region % 128 == 0 for region in regions)
    tokens, hidden, ranks, experts = (int(value) for value in arguments)
    assert layout.total_bytes >= 4 * hidden * ranks * tokens
    assert layout.local_experts * ranks == experts
    last = (1, tokens - 1, layout.topk_capacity - 1)
    assert layout.combine_row_at(*last) + layout.combine_row_stride <= layout.total_bytes
    last = (1, ranks - 1, tokens - 1)
    assert layout.dispatch_row_at(*last) + layout.dispatch_row_stride <= layout.combine_row
    for method in ("dispatch_count_at", "combine_flag_at", "dispatch_row_at", "combine_row_at"):
        try:
            getattr(layout, method)(*place)
        except TypeError:
            assert any(not 0 <= value < 2**32 for value in place)


@examples
@given(st.lists(anything, min_size=3, max_size=3))
def queue_pairs(arguments: list[Any]) -> None:
    try:
        plan = core.plan_queue_pairs(*arguments)
    except (ValueError, TypeError):
        return
    assert plan.required_depth <= plan.depth <= core.MAX_QP_DEPTH
    assert plan.depth & (plan.depth - 1) == 0
    assert plan.required_depth == core.required_qp_depth(arguments[0])


LIBRARIES = [
    str(Path(torch.__file__).parent / "lib" / f"lib{name}.so")
    for name in ("torch_python", "torch_cpu")
]
few = st.one_of(st.integers(-2, 5), numbers)
specs = st.tuples(
    st.one_of(st.just(0), st.integers(-1, 3)),
    st.lists(few, max_size=4),
    st.lists(few, max_size=4),
    st.sampled_from(["float32", "bfloat16", "int64", "bool", "", "x" * 300, "float32\0", "../x"]),
    few,
)


def modest(spec: Any) -> bool:
    """Whether torch would allocate so much that the machine suffers."""
    _, sizes, strides, _, room = spec
    if any(abs(number) > MOST_BYTES for number in (*sizes, *strides, room)):
        return True  # refused, or too large for any allocation
    count = 1
    for size in sizes:
        count *= abs(size)
    return count * 8 < MOST_BYTES and sum(abs(a * b) for a, b in zip(sizes, strides)) < MOST_BYTES


@examples
@given(
    st.sampled_from([LIBRARIES, [], ["/nowhere.so"], [""], [LIBRARIES[1]], ["x" * 5000]]),
    st.sampled_from([-1, -2, 0, 2**31 - 1]),
    st.lists(specs.filter(modest), max_size=3),
)
def tensor_makers(libraries: list[str], device: int, given_specs: list[Any]) -> None:
    try:
        maker = core.open_tensor_maker(libraries, torch.Tensor, device, given_specs)
        made = None if maker is None else maker.make()
    except (ValueError, RuntimeError, TypeError):
        return
    if made is None:
        return
    for tensor, (_, sizes, strides, dtype, _) in zip(made, given_specs):
        assert list(tensor.shape) == sizes
        assert str(tensor.dtype) == f"torch.{dtype}"
        if tensor.numel() > 1:
            assert list(tensor.stride()) == strides
        tensor.zero_()


if __name__ == "__main__":
    for fuzz in (layouts, queue_pairs, tensor_makers):
        fuzz()
        print(f"{fuzz.__name__}: {sys.argv[2]} examples, nothing found", flush=True)
