"""What each rank does in the tests of the NVSHMEM backend alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from cases import Shape, make_inputs
from ep_runtime import Buffer, build_info
from ep_runtime.backends.base import SEND_AND_RECEIVE
from ep_runtime.backends.nvshmem import NvshmemBackend
from ep_runtime.errors import EPError
from ep_runtime.group import resolve_group
from matrix_tasks import (
    assert_same_dispatch,
    backend_for,
    check_shape,
    dispatch_request,
    poison,
    reference_of,
)

if TYPE_CHECKING:
    from pool import Rank

SMALL = Shape(1024, 4, 16, 24)


def report(me: Rank) -> dict[str, Any]:
    """The transport report of a buffer that a program would make."""
    size = Buffer.get_low_latency_rdma_size_hint(24, 1024, me.size, 16)
    buffer = Buffer(
        dist.group.WORLD,
        num_rdma_bytes=size,
        low_latency_mode=True,
        num_qps_per_rank=16 // me.size,
        backend="nvshmem",
        explicitly_destroy=True,
    )
    found = {**buffer.transport_report(), "build": build_info()}
    buffer.destroy()
    return found


def dispatches_wrongly(me: Rank, shape: Shape, seed: int) -> bool:
    """Whether the checker finds a difference in ten dispatches."""
    backend, reference = backend_for(me, shape), reference_of(me)
    wrong = False
    for number in range(10):
        inputs = make_inputs(shape, seed + number, me.rank, me.size)
        want = reference.dispatch(dispatch_request(shape, inputs, "cpu", me.size, "fp8"))
        want.run(SEND_AND_RECEIVE)
        got = backend.dispatch(dispatch_request(shape, inputs, me.device, me.size, "fp8"))
        poison(got.result)
        got.run(SEND_AND_RECEIVE)
        torch.cuda.synchronize()
        try:
            assert_same_dispatch(got.result, want.result, "")
        except AssertionError:
            wrong = True
    backend.destroy()
    return wrong


def blocks_after_rounds(me: Rank, seed: int) -> tuple[int, int]:
    """Number of memory blocks after one buffer, and after many that differ in order of end."""
    check_shape(me, SMALL, seed, rounds=1)
    first = backend_for(me, SMALL)
    world = first._world
    first.destroy()
    before = len(world.blocks)
    for _ in range(3):
        one, two = backend_for(me, SMALL), backend_for(me, SMALL)
        ended = [one, two] if me.rank % 2 else [two, one]
        for backend in ended:
            backend.destroy()
    check_shape(me, SMALL, seed + 1, rounds=1)
    return before, len(world.blocks)


def other_group_is_refused(me: Rank) -> str:
    """The message that a buffer over fewer ranks gets once the world is joined."""
    backend_for(me, SMALL).destroy()
    alone = [dist.new_group([rank]) for rank in range(me.size)][me.rank]
    try:
        NvshmemBackend(
            resolve_group(alone, None, None, None),
            2**20,
            enable_shrink=False,
            device=me.device,
            num_queue_pairs=1,
        )
    except EPError as error:
        return str(error)
    return ""
