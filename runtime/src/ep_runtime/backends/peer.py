"""The peer backend: CUDA kernels that store straight into the memory of the other ranks' GPUs.

All ranks live on one host, on GPUs that reach each other (NVLink or PCIe peer access), or share
one GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ep_runtime import _cuda
from ep_runtime.backends import peer_exchange
from ep_runtime.backends.device import DeviceBackend

if TYPE_CHECKING:
    from ep_runtime.group import RankGroup


@dataclass(frozen=True)
class _Member:
    """What a rank tells the others before any memory is mapped."""

    device: str
    door: peer_exchange.Door


class PeerBackend(DeviceBackend):
    """Symmetric memory of ``num_bytes`` per rank, mapped into every rank of the host.

    Creation is collective, by ranks of one host with the same ``num_bytes``. ``num_sms`` 0 means:
    all SMs of the GPU, divided by the ranks that share it. Raises EPError, the same on all ranks,
    when a GPU cannot map another's memory.
    """

    name = "peer"

    def __init__(
        self,
        ranks: RankGroup,
        num_bytes: int,
        *,
        enable_shrink: bool,
        device: torch.device,
        num_sms: int = 0,
    ) -> None:
        super().__init__(ranks, device)
        with torch.cuda.device(device):
            self.engine, problem = self._allocate(num_bytes, enable_shrink)
            self.agree(ranks, problem)
            members, problem = self._map_peers(ranks)
            self.agree(ranks, problem)
            self.engine.start()
        mine = members[self.rank].device
        self._on_this_gpu = [member.device == mine for member in members]
        self.num_sms = num_sms or max(1, self.engine.num_sms // sum(self._on_this_gpu))
        self.agree(ranks, None)  # nobody sends before everybody has started

    def _allocate(self, num_bytes: int, enable_shrink: bool) -> tuple[Any, str | None]:
        index = self.device.index
        try:
            return _cuda.PeerEngine(index, num_bytes, self.rank, self.size, enable_shrink), None
        except RuntimeError as error:
            return None, str(error)

    def _map_peers(self, ranks: RankGroup) -> tuple[list[_Member], str | None]:
        """Map everybody's memory; the second value says why it was not possible, or is None."""
        problem = None
        device = str(torch.cuda.get_device_properties(self.device).uuid)
        with peer_exchange.serving(self.engine.export_descriptor()) as door:
            said = ranks.gather((device, door.path, door.token), "doors to memory")
            members = [_Member(theirs, peer_exchange.Door(*way)) for theirs, *way in said]
            try:
                self._import_all(members)
            except (OSError, RuntimeError) as error:
                problem = str(error)
            ranks.gather(None, "memory fetched")  # all have fetched; the doors may close
        return members, problem

    def _import_all(self, members: list[_Member]) -> None:
        for peer, member in enumerate(members):
            if peer != self.rank:
                peer_exchange.fetch(member.door, partial(self.engine.import_descriptor, peer))

    def transport_report(self) -> dict[str, Any]:
        """Say what carries the data to each peer."""
        peers = [
            "self" if rank == self.rank else "same-gpu" if same else "peer-memory"
            for rank, same in enumerate(self._on_this_gpu)
        ]
        return {"backend": self.name, "peers": peers, "num_sms": self.num_sms, "nic_handler": None}
