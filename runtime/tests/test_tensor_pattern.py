"""What a planned call compares its arguments with: exactly the tensors it was made for fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ep_runtime import _core
from ep_runtime.new_tensors import torch_libraries
from hypothesis import given
from hypothesis import strategies as st


def matcher(dtype: torch.dtype, sizes: list[int]) -> _core.TensorMatcher:
    name = str(dtype).removeprefix("torch.")
    made = _core.open_tensor_matcher(torch_libraries(), torch.Tensor, -1, name, sizes)
    assert made is not None, "this torch lacks what the compiled code looks up"
    return made


@given(
    shape=st.lists(st.integers(0, 4), max_size=3),
    dtype=st.sampled_from([torch.int32, torch.int64, torch.bfloat16, torch.float32]),
    wanted=st.lists(st.integers(-1, 4), max_size=3),
    wanted_dtype=st.sampled_from([torch.int32, torch.int64, torch.bfloat16, torch.float32]),
)
def test_what_fits(
    shape: list[int], dtype: torch.dtype, wanted: list[int], wanted_dtype: torch.dtype
) -> None:
    tensor = torch.zeros(shape, dtype=dtype)
    fits = (
        dtype == wanted_dtype
        and len(shape) == len(wanted)
        and all(want in (-1, size) for size, want in zip(shape, wanted, strict=True))
    )
    answer = (tensor.data_ptr(), shape) if fits else None
    assert matcher(wanted_dtype, wanted).match(tensor) == answer


def test_the_address_is_that_of_the_first_element() -> None:
    rows = torch.zeros(4, 8, dtype=torch.int32)
    assert matcher(torch.int32, [2, 8]).match(rows[2:]) == (rows.data_ptr() + 64, [2, 8])


class Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "other",
    [
        torch.zeros(8, 4, dtype=torch.int32).T,
        torch.zeros(4, 16, dtype=torch.int32)[:, ::2],
        torch.zeros(4, 16, dtype=torch.int32)[:, :8],
        torch.zeros(1, 8, dtype=torch.int32).expand(4, 8),
        torch.zeros(4, 8, dtype=torch.int32, device="meta"),
        torch.zeros(4, 8, dtype=torch.int32).as_subclass(Subclass),
        torch.zeros(4, 8, dtype=torch.int32).to_sparse(),
        None,
        4,
        [[0] * 8] * 4,
        torch.Tensor,
        type("Imitation", (), {"_cdata": 1})(),
    ],
    ids=lambda other: type(other).__name__,
)
def test_anything_else_does_not_fit(other: Any) -> None:
    assert matcher(torch.int32, [4, 8]).match(other) is None


def test_a_torch_without_the_functions_has_no_matcher() -> None:
    libraries = ["/nowhere/libtorch_python.so"]
    assert _core.open_tensor_matcher(libraries, torch.Tensor, -1, "int32", [4]) is None
