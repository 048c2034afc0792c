"""Sets of new tensors: the compiled maker gives what torch's own functions give."""

from __future__ import annotations

import gc

import pytest
import torch
from ep_runtime import _core, new_tensors
from ep_runtime.new_tensors import TensorSpec, make_in_python, tensor_maker
from hypothesis import given
from hypothesis import strategies as st

CPU = torch.device("cpu")
SPECS = (
    TensorSpec.contiguous((3,), torch.int32),
    TensorSpec.contiguous((3, 8), torch.int32, storage_factor=2),
    TensorSpec.contiguous((3, 2), torch.int64),
    TensorSpec.contiguous((3, 8, 256), torch.float8_e4m3fn),
    TensorSpec((3, 8, 2), (16, 1, 8), torch.float32),
)


def described(tensor: torch.Tensor) -> tuple[object, ...]:
    storage = tensor.untyped_storage().nbytes()
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, storage


def test_the_compiled_maker_serves_this_torch() -> None:
    assert isinstance(getattr(tensor_maker(CPU, SPECS), "__self__", None), _core.TensorMaker)


def test_compiled_and_python_give_the_same_kinds() -> None:
    compiled, python = tensor_maker(CPU, SPECS)(), make_in_python(CPU, SPECS)
    assert [described(tensor) for tensor in compiled] == [described(tensor) for tensor in python]


@given(
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple),
    dtype=st.sampled_from([torch.int32, torch.int64, torch.bfloat16, torch.float8_e4m3fn]),
    factor=st.integers(1, 3),
)
def test_any_contiguous_shape(shape: tuple[int, ...], dtype: torch.dtype, factor: int) -> None:
    spec = TensorSpec.contiguous(shape, dtype, factor)
    (made,), (wanted,) = tensor_maker(CPU, (spec,))(), make_in_python(CPU, (spec,))
    assert described(made) == described(wanted)
    assert made.is_contiguous()


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
    rows = tensor_maker(CPU, (TensorSpec.contiguous((2, 3), torch.bfloat16),))()[0]
    rows.fill_(0.5)
    assert not rows.requires_grad
    assert (rows + 1).sum().item() == 9.0
    with torch.inference_mode():
        assert tensor_maker(CPU, SPECS)()[0].is_inference()


def test_a_torch_without_the_functions_is_served_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_tensors, "_libraries", lambda: ["/nowhere/libtorch_python.so"])
    specs = (TensorSpec.contiguous((7, 11), torch.int32, storage_factor=2),)
    made = tensor_maker(CPU, specs)()
    assert [described(tensor) for tensor in made] == [
        described(tensor) for tensor in make_in_python(CPU, specs)
    ]
