"""Times of torch's all_to_all of the same tokens, taken as the main figures are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ep_runtime.bench.exchange import AllToAll
from ep_runtime.bench.kinds import Kind
from ep_runtime.bench.measure import Operations, clock_of, measure

if TYPE_CHECKING:
    from ep_runtime.bench.pace import Pace
    from ep_runtime.bench.routing import Inputs
    from ep_runtime.bench.world import World


def all_to_all(
    inputs: Inputs, local_experts: int, world: World, device: torch.device, pace: Pace
) -> Kind:
    """Check, time and check again. Collective over the default group."""
    group = None
    if device.type == "cuda":
        places = pace.share(f"{world.host} {device}")
        if len(set(places)) < len(places):
            return Kind.not_measured("ranks share a GPU, which NCCL refuses")
        if not dist.is_nccl_available():
            return Kind.not_measured("this torch has no NCCL")
        group = dist.new_group(backend="nccl")
    exchange = AllToAll(inputs, local_experts, group)
    if wrong := _wrong(exchange, pace):
        return Kind.not_measured(wrong)
    operations = Operations(
        dispatch=lambda _: exchange.dispatch(),
        combine=lambda *_: exchange.combine(),
        barrier=dist.barrier,
    )
    samples = measure(operations, device, world.size, pace).samples
    if wrong := _wrong(exchange, pace):
        return Kind.not_measured(f"after timing, {wrong}")
    if group is not None:
        dist.destroy_process_group(group)
    return Kind(clock_of(device), samples.as_dict())


def _wrong(exchange: AllToAll, pace: Pace) -> str:
    """Say what the first rank with wrong results has found; "" when all are right. Collective."""
    error = exchange.error()
    text = "" if error < exchange.TOLERANCE else f"its results are off by {error:.3g}"
    found = pace.share(text)
    return next((f"rank {rank}: {said}" for rank, said in enumerate(found) if said), "")
