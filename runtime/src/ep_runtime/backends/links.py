"""A rank's connections to its peers, one gloo group of two for each.

In gloo a wait that ends at its deadline closes every connection of its group. With a group for
each pair only the connection to the silent peer goes, and the others are served on.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from ep_runtime.errors import EPPeerLostError, EPTimeoutError
from ep_runtime.gather import PHASE

if TYPE_CHECKING:
    import torch


class Link:
    """The way to one peer and back. Creation waits for the peer to create its end."""

    def __init__(self, store: Store, rank: int, peer: int, options: Any) -> None:
        low, high = min(rank, peer), max(rank, peer)
        self._other = 0 if peer == low else 1
        pair = PrefixStore(f"{low}-{high}", store)
        # Any: a ProcessGroupGloo, whose methods torch's stubs leave out.
        self._group: Any = dist.ProcessGroupGloo(pair, 1 - self._other, 2, options)

    def send(self, tensor: torch.Tensor, tag: int) -> dist.Work:
        """Start sending ``tensor``, which must not change until the peer has received it."""
        work: dist.Work = self._group.send([tensor], self._other, tag)
        return work

    def receive(self, tensor: torch.Tensor, tag: int) -> dist.Work:
        """Start receiving into ``tensor``, which must be as large as what was sent."""
        work: dist.Work = self._group.recv([tensor], self._other, tag)
        return work


def connect(store: Store, name: str, rank: int, size: int) -> dict[int, Link]:
    """Connect to all other ranks, by the same ``name`` on all. Collective.

    The wait for each is as long as the store's timeout. Raises EPTimeoutError or EPPeerLostError
    naming the first peer that is not there.
    """
    timeout: timedelta = store.timeout  # type: ignore[attr-defined]
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    # The devices of a group that is made without any: torch reads GLOO_SOCKET_IFNAME only there.
    alone = dist.ProcessGroupGloo(PrefixStore(f"{name}/{rank}", store), 0, 1, timeout)
    options._devices = alone.options._devices  # type: ignore[attr-defined]
    options._threads = 1
    options._timeout = timeout
    links = {}
    for peer in range(size):  # pairs come in one order on all ranks, so that no wait is a circle
        if peer == rank:
            continue
        try:
            links[peer] = Link(PrefixStore(name, store), rank, peer, options)
        except RuntimeError as error:
            if "imeout" in str(error) or "imed out" in str(error):
                raise EPTimeoutError(
                    rank=rank,
                    peer=peer,
                    phase=PHASE,
                    waited_us=int(timeout.total_seconds() * 1e6),
                ) from error
            raise EPPeerLostError(
                f"rank {rank}: {PHASE} could not connect to rank {peer}: {error}",
                rank=rank,
                peer=peer,
                phase=PHASE,
            ) from error
    return links
