"""Sets of new tensors whose shapes stay the same from call to call.

Making five tensors in Python costs more than launching the kernel that fills them. Contents are
undefined, as with ``torch.empty``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from ep_runtime import _core

if TYPE_CHECKING:
    from collections.abc import Callable


class TensorSpec(NamedTuple):
    """Shape, strides (elements) and dtype of one tensor.

    Its storage holds ``storage_factor`` times the first dimension, for data behind the tensor.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    storage_factor: int = 1

    @classmethod
    def contiguous(
        cls, shape: tuple[int, ...], dtype: torch.dtype, storage_factor: int = 1
    ) -> TensorSpec:
        """Lay the elements out in row-major order."""
        strides = [1] * len(shape)
        for dimension in reversed(range(len(shape) - 1)):
            strides[dimension] = strides[dimension + 1] * max(1, shape[dimension + 1])
        return cls(shape, tuple(strides), dtype, storage_factor)


def tensor_maker(
    device: torch.device, specs: tuple[TensorSpec, ...]
) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Give a function that makes one new tensor for each of ``specs`` on ``device``.

    Looking torch's functions up takes longer than a call of it: to be kept.
    """
    compiled = _core.open_tensor_maker(
        _libraries(),
        -1 if device.type == "cpu" else device.index,
        [
            (list(spec.shape), list(spec.strides), _name(spec.dtype), spec.storage_factor)
            for spec in specs
        ],
    )
    if compiled is not None:
        return compiled.make
    return lambda: make_in_python(device, specs)


def make_in_python(device: torch.device, specs: tuple[TensorSpec, ...]) -> tuple[torch.Tensor, ...]:
    """Do the same with torch's public functions."""
    made = []
    for shape, strides, dtype, factor in specs:
        whole = torch.empty_strided(
            (factor * shape[0], *shape[1:]), strides, dtype=dtype, device=device
        )
        made.append(whole if factor == 1 else whole.narrow(0, 0, shape[0]))
    return tuple(made)


def _libraries() -> list[str]:
    folder = Path(torch.__file__).parent / "lib"
    return [str(folder / f"lib{name}.so") for name in ("torch_python", "torch_cpu")]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
