"""Sets of new tensors: the compiled maker gives what torch's own functions give."""

from __future__ import annotations

import gc
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import torch
from ep_runtime import _core, new_tensors
from ep_runtime.new_tensors import TensorSpec, make_in_python, tensor_maker
from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable

CPU = torch.device("cpu")
SPECS = (
    TensorSpec.contiguous(0, (3,), torch.int32),
    TensorSpec.contiguous(0, (3, 8), torch.int32, room_behind=96),
    TensorSpec.contiguous(0, (3, 2), torch.int64),
    TensorSpec.contiguous(1, (3, 8, 256), torch.float8_e4m3fn),
    TensorSpec(1, (3, 8, 2), (16, 1, 8), torch.float32),
)


def described(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def test_the_compiled_maker_serves_this_torch() -> None:
    specs = [spec.compiled() for spec in SPECS]
    compiled = _core.open_tensor_maker(new_tensors.torch_libraries(), torch.Tensor, -1, specs)
    assert isinstance(compiled, _core.TensorMaker)
    assert len(compiled.make()) == len(SPECS)


def test_out_of_memory_is_torch_s_own_error() -> None:
    make = tensor_maker(CPU, (TensorSpec.contiguous(0, (2**50,), torch.int32),))
    with pytest.raises(RuntimeError, match="allocate"):
        torch.empty(2**50, dtype=torch.int32)
    with pytest.raises(RuntimeError, match="memory"):
        make()


@pytest.mark.parametrize("make", [tensor_maker(CPU, SPECS), lambda: make_in_python(CPU, SPECS)])
def test_each_lies_where_no_other_does(make: Callable[[], tuple[torch.Tensor, ...]]) -> None:
    tensors = make()
    assert [described(tensor) for tensor in tensors] == [
        (spec.shape, spec.strides, spec.dtype, CPU) for spec in SPECS
    ]
    ranges = []
    for tensor, spec in zip(tensors, SPECS, strict=True):
        begin = tensor.data_ptr()
        end = begin + tensor.numel() * tensor.itemsize + spec.room_behind
        memory = tensor.untyped_storage()
        assert memory.data_ptr() <= begin
        assert end <= memory.data_ptr() + memory.nbytes()
        assert begin % 16 == 0
        ranges.append((begin, end))
    ranges.sort()
    assert all(end <= begin for (_, end), (begin, _) in pairwise(ranges))


def test_tensors_of_a_block_share_memory() -> None:
    storages = [tensor.untyped_storage().data_ptr() for tensor in tensor_maker(CPU, SPECS)()]
    assert len(set(storages)) == 2
    assert storages[0] == storages[2]


@given(
    shapes=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple), max_size=3),
    dtype=st.sampled_from([torch.int32, torch.int64, torch.bfloat16, torch.float8_e4m3fn]),
    room=st.integers(0, 300),
)
def test_any_contiguous_shapes(
    shapes: list[tuple[int, ...]], dtype: torch.dtype, room: int
) -> None:
    specs = tuple(TensorSpec.contiguous(0, shape, dtype, room) for shape in shapes)
    made = tensor_maker(CPU, specs)()
    assert [tensor.shape for tensor in made] == shapes
    for number, tensor in enumerate(made):
        assert tensor.is_contiguous()
        tensor.fill_(number)
    assert all((tensor.float() == number).all() for number, tensor in enumerate(made))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ((1, [1], [1], "int32", 0), "numbered"),
        ((0, [1], [1, 1], "int32", 0), "stride for each"),
        ((0, [], [], "int32", 0), "stride for each"),
        ((0, [2], [-1], "int32", 0), "negative"),
        ((0, [2**40, 2**40], [1, 1], "int32", 0), "too much memory"),
        ((0, [2**40, 2], [1, 2**59], "int32", 0), "too much memory"),
        ((0, [2**62], [0], "int32", 0), "too much memory"),
        ((0, [1], [1], "int32", -1), "room behind"),
        ((0, [1], [1], "int32", 2**62), "room behind"),
    ],
)
def test_what_would_reach_beyond_memory_is_refused(spec: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        _core.open_tensor_maker(new_tensors.torch_libraries(), torch.Tensor, -1, [spec])


def test_each_call_gives_memory_of_its_own_that_ends_with_it() -> None:
    make = tensor_maker(CPU, SPECS)
    first, second = make()[0], make()[0]
    first.fill_(1)
    second.fill_(2)
    assert first.tolist() == [1, 1, 1]
    before = sum(type(thing) is torch.Tensor for thing in gc.get_objects())
    for _ in range(100):
        make()
    assert sum(type(thing) is torch.Tensor for thing in gc.get_objects()) == before


def test_they_are_ordinary_tensors() -> None:
    rows = tensor_maker(CPU, (TensorSpec.contiguous(0, (2, 3), torch.bfloat16),))()[0]
    rows.fill_(0.5)
    assert not rows.requires_grad
    assert (rows + 1).sum().item() == 9.0
    with torch.inference_mode():
        assert tensor_maker(CPU, SPECS)()[0].is_inference()


def test_a_torch_without_the_functions_is_served_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_tensors, "torch_libraries", lambda: ["/nowhere/libtorch_python.so"])
    specs = (TensorSpec.contiguous(0, (7, 11), torch.int32, room_behind=308),)
    made = tensor_maker(CPU, specs)()
    assert [described(tensor) for tensor in made] == [
        described(tensor) for tensor in make_in_python(CPU, specs)
    ]
