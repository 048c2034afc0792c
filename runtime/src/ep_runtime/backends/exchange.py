"""One operation after another in which each rank sends every rank one message and gets one."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING, Any

import torch

from ep_runtime.backends.messages import Deadline, Message, Messenger
from ep_runtime.errors import EPError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ep_runtime.group import RankGroup

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Call:
    """What a message belongs to: an operation, and what all ranks must have given alike to it.

    ``number`` tells the operations of an exchange apart; ``arguments`` are at most seven.
    """

    name: str
    number: int
    arguments: Mapping[str, int]

    @property
    def fields(self) -> tuple[int, ...]:
        """The integers that travel with a message."""
        return (self.number, *self.arguments.values())


class Exchange:
    """Private connections of ``ranks`` and the ranks that are masked. Creation is collective.

    A masked rank is neither sent to nor waited for. With ``mask_lost`` a rank that is gone, silent
    beyond the timeout, or sends what is damaged is masked, else that is an error.
    """

    def __init__(self, ranks: RankGroup, *, mask_lost: bool) -> None:
        self.rank, self.size = ranks.rank, ranks.size
        self.masked = [False] * ranks.size
        self._mask_lost = mask_lost
        self._failed = False
        self._messenger = Messenger(ranks)
        self._sequence = 0
        self._threads: ThreadPool | None = None

    def peers(self) -> list[int]:
        """All ranks that are not masked, this one included."""
        return [peer for peer in range(self.size) if not self.masked[peer]]

    def send(
        self, call: Call, parts: Mapping[int, tuple[torch.Tensor, ...]], timeout_us: int
    ) -> int:
        """Start sending ``parts`` of each peer; returns the number of the operation.

        Parts are up to two 1-D uint8 CPU tensors, which must not change until they are received.
        """
        self._sequence += 1
        # Two operations may be in flight: what came before them must have been received.
        self._messenger.retire(self._sequence - 1, Deadline(timeout_us), self._lost)
        for peer, content in parts.items():
            if self.masked[peer]:  # it was lost a moment ago
                continue
            try:
                self._messenger.send(
                    self._sequence, peer, Message(call.fields, content), f"{call.name} send"
                )
            except EPError as error:
                self._lost(error)
        return self._sequence

    def receive(
        self, sequence: int, call: Call, timeout_us: int, wait_stats: torch.Tensor | None = None
    ) -> Iterator[tuple[int, tuple[torch.Tensor, ...]]]:
        """Give each unmasked rank's parts of one operation, in rank order.

        The peer's call must be the same as ours. With ``wait_stats`` all peers are waited for at
        once, and the time until each one's message was here is added, in ns.
        """
        phase = f"{call.name} receive"
        deadline = Deadline(timeout_us)
        begin = time.monotonic_ns()

        def fetch(peer: int) -> tuple[Message, int]:
            message = self._messenger.receive(sequence, peer, phase, deadline)
            return message, time.monotonic_ns() - begin

        waits = [0] * self.size
        for peer in self.peers():
            try:
                self._messenger.ask(sequence, peer, phase)
            except EPError as error:
                self._lost(error)
        peers = self.peers()
        results: list[Callable[[], tuple[Message, int]]] = [partial(fetch, peer) for peer in peers]
        if wait_stats is not None:
            # In turn, the wait for one late peer would hide how late the next ones are.
            results = [self._waiters().apply_async(result).get for result in results]
        for peer, result in zip(peers, results):
            try:
                message, waits[peer] = result()
            except EPError as error:
                self._lost(error)
                continue
            self._compare(call, message.fields, peer, phase)
            yield peer, message.parts
        if wait_stats is not None:
            wait_stats.add_(torch.tensor(waits, dtype=torch.int64).to(wait_stats.device))

    def _waiters(self) -> ThreadPool:
        """Give the threads that wait for a peer each, made at their first use.

        Unlike those of concurrent.futures they hold up no process that ends while a peer is lost.
        """
        if self._threads is None:
            self._threads = ThreadPool(self.size)
        return self._threads

    def drop_unreceived(self, timeout_us: int) -> None:
        """Receive and forget what was sent and not received."""
        self._messenger.drop_unreceived(self.peers(), Deadline(timeout_us), self._lost)

    def close(self) -> None:
        """Close the group once peers have fetched what they were sent."""
        self._messenger.close(after_error=self._failed)
        if self._threads is not None:
            self._threads.close()

    def _compare(self, call: Call, theirs: tuple[int, ...], peer: int, phase: str) -> None:
        names = ("operation", *call.arguments)
        for name, mine, other in zip(names, call.fields, theirs):
            if mine != other:
                self._failed = True
                raise EPError(
                    f"rank {self.rank}: {phase} has {name} {mine} here, but {other} on rank "
                    f"{peer}: all ranks must make the same calls.",
                    rank=self.rank,
                    peer=peer,
                    phase=phase,
                )

    def _lost(self, error: EPError) -> None:
        """Go on without the peer where that is wanted, else raise."""
        if not self._mask_lost or error.peer is None:
            self._failed = True
            raise error
        _log.warning("%s; rank %d is masked from now on.", error, error.peer)
        self.masked[error.peer] = True


def transport_report(rank: int, size: int) -> dict[str, Any]:
    """Name the path of an exchange to each rank, as a backend does."""
    peers = ["self" if peer == rank else "gloo" for peer in range(size)]
    return {"backend": "reference", "peers": peers, "num_sms": 0, "nic_handler": None}


def bytes_of(rows: torch.Tensor) -> torch.Tensor:
    """[N, B] uint8 view or copy of contiguous rows [N, ...] of B bytes."""
    row_bytes = rows.element_size()
    for length in rows.shape[1:]:
        row_bytes *= length
    # Flat first: the strides of an empty tensor may be anything, and then it can't be viewed.
    return rows.reshape(-1).view(torch.uint8).view(rows.shape[0], row_bytes)
