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
    """Shape, strides (elements) and dtype of one tensor, and the block of memory it lies in.

    Blocks are numbered from 0 in the order of their tensors, which share memory that is free again
    after the last of them. ``room_behind`` are bytes of the owner's own behind the tensor.
    """

    block: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    room_behind: int = 0

    @classmethod
    def contiguous(
        cls, block: int, shape: tuple[int, ...], dtype: torch.dtype, room_behind: int = 0
    ) -> TensorSpec:
        """Lay the elements out in row-major order."""
        strides = [1] * len(shape)
        for dimension in reversed(range(len(shape) - 1)):
            strides[dimension] = strides[dimension + 1] * max(1, shape[dimension + 1])
        return cls(block, shape, tuple(strides), dtype, room_behind)

    def compiled(self) -> tuple[int, list[int], list[int], str, int]:
        """Say the same to compiled code, which knows dtypes by name."""
        name = str(self.dtype).removeprefix("torch.")
        return self.block, list(self.shape), list(self.strides), name, self.room_behind


def tensor_maker(
    device: torch.device, specs: tuple[TensorSpec, ...]
) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Give a function that makes one new tensor for each of ``specs`` on ``device``.

    Looking torch's functions up takes longer than a call of it: to be kept.
    """
    compiled = _core.open_tensor_maker(
        torch_libraries(),
        torch.Tensor,
        -1 if device.type == "cpu" else device.index,
        [spec.compiled() for spec in specs],
    )
    if compiled is None:
        return lambda: make_in_python(device, specs)

    def make() -> tuple[torch.Tensor, ...]:
        try:
            return compiled.make()
        except RuntimeError:
            return make_in_python(device, specs)  # out of memory: torch says how much and of what

    return make


def make_in_python(device: torch.device, specs: tuple[TensorSpec, ...]) -> tuple[torch.Tensor, ...]:
    """Do the same with torch's public functions, each tensor in memory of its own."""
    made = []
    for spec in specs:
        tensor = torch.empty_strided(spec.shape, spec.strides, dtype=spec.dtype, device=device)
        if spec.room_behind:
            bytes_ = tensor.untyped_storage().nbytes() + spec.room_behind
            elements = -(-bytes_ // spec.dtype.itemsize)
            whole = torch.empty(elements, dtype=spec.dtype, device=device)
            tensor = whole.as_strided(spec.shape, spec.strides)
        made.append(tensor)
    return tuple(made)


def torch_libraries() -> list[str]:
    """Give the paths of torch's libraries in which compiled code looks its functions up."""
    folder = Path(torch.__file__).parent / "lib"
    return [str(folder / f"lib{name}.so") for name in ("torch_python", "torch_cpu")]
