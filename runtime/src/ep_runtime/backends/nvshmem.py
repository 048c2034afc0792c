"""The NVSHMEM backend: the same kernels, storing to mapped peers and putting rows to the others.

Ranks may be on several hosts. Peers that NVSHMEM maps here (NVLink, the same GPU) are written to
directly; the others get puts over RDMA, on one explicit queue pair per local expert where NVSHMEM
has them (3.5.19 and newer), else by put-with-signal.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from ep_runtime import build
from ep_runtime.backends import nvshmem_world
from ep_runtime.backends.device import DeviceBackend
from ep_runtime.backends.peer_exchange import host_identity

if TYPE_CHECKING:
    from ep_runtime.group import RankGroup

# For tests: every other rank is reached by puts, mapped or not.
ONLY_PUTS_VARIABLE = "EP_RUNTIME_NVSHMEM_ONLY_PUTS"
# For tests: publish a row before its data, which a checker must notice.
BREAK_ORDER_VARIABLE = "EP_RUNTIME_NVSHMEM_BREAK_ORDER"


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "0") not in ("", "0")


class NvshmemBackend(DeviceBackend):
    """Symmetric memory of ``num_bytes`` per rank in NVSHMEM's heap; twice that where rows are put.

    Creation is collective. ``num_queue_pairs`` explicit queue pairs are made to each rank that is
    not mapped. ``num_sms`` 0 means: all SMs of the GPU, divided by the ranks that share it. Raises
    EPError, the same on all ranks, with what to do when NVSHMEM can't be used.
    """

    name = "nvshmem"

    def __init__(
        self,
        ranks: RankGroup,
        num_bytes: int,
        *,
        enable_shrink: bool,
        device: torch.device,
        num_queue_pairs: int,
        num_sms: int = 0,
    ) -> None:
        super().__init__(ranks, device)
        cuda_major = int(str(build.build_info()["cuda_version"]).split(".", maxsplit=1)[0])
        with torch.cuda.device(device):
            self._world = nvshmem_world.enter(ranks, device, cuda_major)
            from ep_runtime import _nvshmem  # noqa: PLC0415 - loadable now that its library is

            self._blocks = [nvshmem_world.acquire(self._world, ranks, num_bytes)]
            address = self._blocks[0].address
            only_puts = _is_set(ONLY_PUTS_VARIABLE)
            self._mapped = [
                rank == self.rank or (not only_puts and bool(_nvshmem.mapped(address, rank)))
                for rank in range(self.size)
            ]
            mirror, queue_pairs = 0, list[int]()
            if not all(ranks.gather(all(self._mapped), "reach of peer stores")):
                self._blocks.append(nvshmem_world.acquire(self._world, ranks, num_bytes))
                mirror = self._blocks[1].address
                queue_pairs = nvshmem_world.queue_pairs(self._world, num_queue_pairs)
            self.engine = _nvshmem.NvshmemEngine(
                address=address,
                num_bytes=num_bytes,
                mirror=mirror,
                queue_pairs=queue_pairs,
                only_puts=only_puts,
                break_order=_is_set(BREAK_ORDER_VARIABLE),
                device=device.index,
                rank=self.rank,
                num_ranks=self.size,
                enable_shrink=enable_shrink,
            )
            self.engine.start()
        self._queue_pairs = len(queue_pairs)
        me = (host_identity(), str(torch.cuda.get_device_properties(device).uuid))
        self._places: list[tuple[str, str]] = ranks.gather(me, "places of ranks")
        self.num_sms = num_sms or max(1, self.engine.num_sms // self._places.count(me))
        self.agree(ranks, None)  # nobody sends before everybody has started

    def _way_to(self, rank: int) -> str:
        if rank == self.rank:
            return "self"
        if self._mapped[rank]:
            return "same-gpu" if self._places[rank] == self._places[self.rank] else "nvlink"
        return "put" if _is_set(ONLY_PUTS_VARIABLE) else "rdma"

    def transport_report(self) -> dict[str, Any]:
        """Say what carries the data to each peer, and which NVSHMEM and NIC handler that is."""
        library, log = self._world.library, self._world.log
        return {
            "backend": self.name,
            "peers": [self._way_to(rank) for rank in range(self.size)],
            "num_sms": self.num_sms,
            "nic_handler": log.nic_handler,
            "queue_pairs": self._queue_pairs or "default",
            "nvshmem_version": ".".join(str(number) for number in library.version),
            "nvshmem_library": library.path,
            "rdma_devices": log.devices,
        }

    def destroy(self) -> None:
        """Wait for this GPU and give the memory back to the world; no peer takes part."""
        super().destroy()
        for block in self._blocks:
            block.in_use = False
