"""Where the ranks meet: the process group that ties them together, and gathers over it.

Control traffic uses gloo on every device, since several ranks may share one GPU, which NCCL
refuses.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ep_runtime.bench.world import World


def pick_device(world: World) -> torch.device:
    """Pick this rank's GPU, shared where ranks outnumber GPUs, or the CPU without any."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", world.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def join(world: World, timeout_s: float) -> dist.ProcessGroup:
    """Start the default process group over gloo and return it. Collective.

    Raises torch's ``DistError`` family when peers do not come within ``timeout_s`` seconds.
    """
    timeout = timedelta(seconds=timeout_s)
    if world.launched:
        dist.init_process_group("gloo", timeout=timeout, rank=world.rank, world_size=world.size)
    else:
        # No port to choose and none to collide on.
        dist.init_process_group(
            "gloo",
            store=dist.HashStore(),  # type: ignore[attr-defined]
            timeout=timeout,
            rank=0,
            world_size=1,
        )
    group = dist.group.WORLD
    assert group is not None
    return group


def gather(group: dist.ProcessGroup, value: Any) -> list[Any]:
    """Collect everybody's picklable ``value``, in rank order, on every rank. Collective."""
    values: list[Any] = [None] * group.size()
    dist.all_gather_object(values, value, group=group)
    return values


def gather_on_first(group: dist.ProcessGroup, value: Any) -> list[Any] | None:
    """Collect everybody's picklable ``value``, in rank order, on rank 0; None elsewhere.

    For what grows with the number of ranks, which need not be everywhere. Collective.
    """
    values = [None] * group.size() if group.rank() == 0 else None
    dist.gather_object(value, values, dst=0, group=group)
    return values
