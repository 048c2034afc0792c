"""The ranks that share a ``Buffer``, however their caller names them.

Only small values are gathered, so gloo, NCCL and mpi4py groups all serve.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store, _get_default_store

from ep_runtime.gather import gather_of

if TYPE_CHECKING:
    from collections.abc import Callable


class RankGroup:
    """Rank, size and a gather; ``process_group`` is None for an mpi4py communicator.

    ``store`` is where the ranks of a process group can leave word for each other.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        gather: Callable[[Any, str], list[Any]],
        process_group: dist.ProcessGroup | None,
        store: Store | None = None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.process_group = process_group
        self.store = store
        self._gather = gather

    def gather(self, value: Any, what: str) -> list[Any]:
        """``value`` of every rank, in rank order. Collective; ``what`` is the same on all ranks.

        Values are literals, as in ``StoreGather``. The wait is bounded by the timeout that the
        process group was started with; raises EPError naming who did not come.
        """
        return self._gather(value, what)


def _from_process_group(group: dist.ProcessGroup) -> RankGroup:
    stored = gather_of(group)
    if stored is not None:
        return RankGroup(group.rank(), group.size(), stored, group, stored.store)

    def gather(value: Any, what: str) -> list[Any]:
        values: list[Any] = [None] * group.size()
        dist.all_gather_object(values, value, group=group)
        return values

    return RankGroup(group.rank(), group.size(), gather, group, _get_default_store())


def _default_process_group(rank: int, group_size: int) -> dist.ProcessGroup:
    if not 0 <= rank < group_size:
        raise ValueError(f"rank must be from 0 to group_size - 1 = {group_size - 1}, got {rank}.")
    if not dist.is_initialized():
        if group_size == 1:
            # Nobody to meet, so no address is needed.
            store = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        else:
            missing = [n for n in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(n)]
            if missing:
                raise ValueError(
                    f"rank= and group_size={group_size} without a group start the default process "
                    f"group, which needs {' and '.join(missing)} in the environment."
                )
            dist.init_process_group("gloo", rank=rank, world_size=group_size)
    group = dist.group.WORLD
    assert group is not None
    if (group.rank(), group.size()) != (rank, group_size):
        raise ValueError(
            f"rank={rank} and group_size={group_size} differ from the default process group, "
            f"where this is rank {group.rank()} of {group.size()}."
        )
    return group


def resolve_group(
    group: dist.ProcessGroup | None, comm: Any, rank: int | None, group_size: int | None
) -> RankGroup:
    """Take the group in one of three forms: a process group, an mpi4py ``comm``, or numbers.

    ``rank`` and ``group_size`` name the default process group, which is started over gloo if
    there is none. Beside a group they must agree with it. Raises ValueError otherwise.
    """
    if group is not None:
        ranks = _from_process_group(group)
    elif comm is not None:
        ranks = RankGroup(
            comm.Get_rank(), comm.Get_size(), lambda value, what: comm.allgather(value), None
        )
    elif rank is not None and group_size is not None:
        return _from_process_group(_default_process_group(rank, group_size))
    else:
        raise ValueError("Either 'group' or 'comm' must be provided, or both rank and group_size.")
    for name, given, real in (("rank", rank, ranks.rank), ("group_size", group_size, ranks.size)):
        if given is not None and given != real:
            raise ValueError(f"{name} is {given}, but the group given says {real}.")
    return ranks
