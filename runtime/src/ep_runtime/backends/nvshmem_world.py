"""NVSHMEM's one world in this process: joined with the first buffer, shared by all.

Leaving it would be collective, and so would freeing its memory; neither can be asked of ranks whose
peers may have died. So the world stays until the process ends, and memory that a buffer gives back
is kept for the next one: blocks that all ranks have given back are reused, or freed together where
a new buffer needs other sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ep_runtime.backends import nvshmem_library, nvshmem_log
from ep_runtime.backends.agreement import raise_together
from ep_runtime.errors import EPError
from ep_runtime.gather import PHASE

if TYPE_CHECKING:
    import torch

    from ep_runtime.group import RankGroup


@dataclass
class Block:
    """Symmetric memory of this world; blocks with one number lie at one place on all ranks."""

    number: int
    address: int
    num_bytes: int
    in_use: bool = True


@dataclass
class World:
    """What this process knows about its world. ``key`` tells worlds apart."""

    key: bytes
    library: nvshmem_library.Library
    log: nvshmem_log.StartLog
    queue_pairs: list[int] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    made: int = 0


_world: World | None = None


def _agree(ranks: RankGroup, problem: str | None) -> None:
    raise_together(ranks, "use NVSHMEM", problem)


def enter(ranks: RankGroup, device: torch.device, cuda_major: int) -> World:
    """Join the world of ``ranks``, or find it joined. Collective; EPError on all ranks or none."""
    global _world  # noqa: PLW0603 - there is one per process by NVSHMEM's design
    problem, library = None, None
    try:
        library = nvshmem_library.load(cuda_major)
    except RuntimeError as error:
        problem = str(error)
    _agree(ranks, problem)
    keys = ranks.gather(None if _world is None else _world.key, "NVSHMEM worlds")
    if all(key is None for key in keys):
        assert library is not None
        _world = _join(ranks, device, library)
    elif any(key != keys[0] for key in keys) or len(keys) != _size_of(keys[0]):
        strange = next((rank for rank, key in enumerate(keys) if key != keys[0]), 0)
        raise EPError(
            f"NVSHMEM has one world a process, and the process of rank {strange} is in another one "
            "than this group: make all buffers over the same ranks.",
            rank=ranks.rank,
            peer=strange,
            phase=PHASE,
        )
    assert _world is not None
    return _world


def _size_of(key: bytes | None) -> int:
    return -1 if key is None else int.from_bytes(key[:4], "little")


def _join(ranks: RankGroup, device: torch.device, library: nvshmem_library.Library) -> World:
    from ep_runtime import _nvshmem  # noqa: PLC0415 - needs the library that was just loaded

    problem, unique_id, log = None, b"", nvshmem_log.StartLog()
    if ranks.rank == 0:
        try:
            with log.recording():
                unique_id = _nvshmem.unique_id()
        except RuntimeError as error:
            problem = str(error)
    _agree(ranks, problem)
    unique_id = ranks.gather(unique_id, "id of the NVSHMEM world")[0]
    try:
        with log.recording():
            _nvshmem.join(unique_id, ranks.rank, ranks.size, device.index)
    except RuntimeError as error:
        problem = str(error)
    if problem is not None:
        problem = ": ".join(filter(None, [problem, log.explain()]))
    _agree(ranks, problem)
    return World(ranks.size.to_bytes(4, "little") + unique_id, library, log)


def acquire(world: World, ranks: RankGroup, num_bytes: int) -> Block:
    """Give zeroed symmetric memory of at least ``num_bytes``. Collective; EPError when it is short.

    A block that all ranks have given back is used again where it is large enough.
    """
    from ep_runtime import _nvshmem  # noqa: PLC0415

    free = _given_back_everywhere(world, ranks)
    fitting = sorted(
        (block for block in free if block.num_bytes >= num_bytes),
        key=lambda block: (block.num_bytes, block.number),
    )
    if fitting:
        block = fitting[0]
        block.in_use = True
        _nvshmem.zero(block.address, block.num_bytes)
    else:
        with world.log.recording():
            for block in free:
                _nvshmem.free(block.address)
                world.blocks.remove(block)
            address = _nvshmem.allocate(num_bytes)
        problem = f"no symmetric memory of {num_bytes} bytes is left"
        _agree(ranks, None if address else problem)
        world.made += 1
        block = Block(world.made, address, num_bytes)
        world.blocks.append(block)
    _agree(ranks, None)  # all have zeroed theirs
    return block


def _given_back_everywhere(world: World, ranks: RankGroup) -> list[Block]:
    mine = {block.number: block for block in world.blocks if not block.in_use}
    theirs: list[set[int]] = ranks.gather(set(mine), "memory given back")
    common = set.intersection(*theirs)
    return [mine[number] for number in sorted(common)]


def queue_pairs(world: World, count: int) -> list[int]:
    """Give ``count`` explicit queue pairs to each rank; none where NVSHMEM has none. Collective."""
    from ep_runtime import _nvshmem  # noqa: PLC0415

    if len(world.queue_pairs) < count:
        with world.log.recording():
            world.queue_pairs = _nvshmem.create_queue_pairs(count)
    return world.queue_pairs[:count]
