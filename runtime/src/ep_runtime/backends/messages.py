"""One-to-one messages between ranks over a private gloo group, with a bound on every wait.

The group is private so that our tags and timeouts can't meddle with the caller's traffic.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from ep_runtime.errors import EPPeerLostError, EPTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ep_runtime.group import RankGroup

FIELDS = 8  # integers that a message carries beside its parts
_MAX_PARTS = 2
_TAGS = 1024  # so many operations until a tag is used again
_CONNECT = timedelta(seconds=300)
_LINGER_S = 10.0  # for peers to fetch our last messages when the group is closed


@dataclass(frozen=True)
class Message:
    """Up to eight integers and up to two byte strings (1-D uint8 CPU tensors)."""

    fields: tuple[int, ...]
    parts: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class _Sent:
    sequence: int
    peer: int
    phase: str
    work: dist.Work
    tensor: torch.Tensor  # alive until the work is done


class Deadline:
    """A point in time for one phase of one operation."""

    def __init__(self, timeout_us: int) -> None:
        self._start = time.monotonic()
        self._timeout_us = timeout_us

    @property
    def waited_us(self) -> int:
        """Microseconds since the phase began."""
        return int((time.monotonic() - self._start) * 1e6)

    @property
    def left(self) -> timedelta:
        """What a wait may take: at least a millisecond, the least that gloo can wait."""
        return timedelta(microseconds=max(1000, self._timeout_us - self.waited_us))

    @property
    def over(self) -> bool:
        """Whether the time is up, to the millisecond that gloo counts in."""
        return self.waited_us >= self._timeout_us - 1000


class Messenger:
    """Sends without waiting and receives with a deadline; ``sequence`` pairs the two sides.

    Creation is collective. Raises ValueError when the ranks are not a torch process group.
    """

    def __init__(self, ranks: RankGroup) -> None:
        if ranks.process_group is None:
            raise ValueError(
                "The reference backend needs a torch process group, not an mpi4py comm."
            )
        self._rank = ranks.rank
        self._sent: deque[_Sent] = deque()
        self._local: dict[int, Message] = {}
        self._unreceived: dict[tuple[int, int], str] = {}  # (sequence, peer): phase
        self._group: Any = None  # a ProcessGroupGloo; torch's stubs leave out its methods
        if ranks.size > 1:
            # Not dist.new_group: it needs every rank of the default group, or else names groups
            # by how many a process knows, which differs between ranks.
            name = ranks.all_gather_object(uuid4().hex)[0]
            store = PrefixStore(f"ep_runtime/{name}", _get_default_store())
            self._group = dist.ProcessGroupGloo(store, ranks.rank, ranks.size, _CONNECT)

    def send(self, sequence: int, peer: int, message: Message, phase: str) -> None:
        """Start sending; the message's tensors must not change until the peer has received.

        The peer is taken to send one of the same ``sequence``, too.
        """
        self._unreceived[sequence, peer] = phase
        if peer == self._rank:
            self._local[sequence] = message
            return
        sizes = [part.numel() for part in message.parts]
        sizes += [0] * (_MAX_PARTS - len(sizes))
        fields = [*message.fields, *[0] * (FIELDS - len(message.fields))]
        tensors = [torch.tensor([sequence, *sizes, *fields])]
        tensors += [part for part in message.parts if part.numel() > 0]
        with self._naming(peer, phase, None):
            for tensor in tensors:
                work = self._open_group().send([tensor], peer, sequence % _TAGS)
                self._sent.append(_Sent(sequence, peer, phase, work, tensor))

    def receive(self, sequence: int, peer: int, phase: str, deadline: Deadline) -> Message:
        """Wait for the peer's message of the same ``sequence``.

        Raises EPTimeoutError or EPPeerLostError, both naming the peer.
        """
        self._unreceived.pop((sequence, peer), None)
        if peer == self._rank:
            return self._local.pop(sequence)
        head = torch.empty(1 + _MAX_PARTS + FIELDS, dtype=torch.int64)
        self._fetch(head, sequence, peer, phase, deadline)
        theirs, *rest = head.tolist()
        if theirs != sequence:
            raise EPPeerLostError(
                f"rank {self._rank}: {phase} is operation {sequence} here, but rank {peer} sent "
                f"operation {theirs}: all ranks must make the same calls in the same order.",
                rank=self._rank,
                peer=peer,
                phase=phase,
            )
        parts = []
        for size in rest[:_MAX_PARTS]:
            parts.append(torch.empty(size, dtype=torch.uint8))
            if size > 0:
                self._fetch(parts[-1], sequence, peer, phase, deadline)
        return Message(tuple(rest[_MAX_PARTS:]), tuple(parts))

    def retire(
        self, before: int, deadline: Deadline, lost: Callable[[EPPeerLostError], None]
    ) -> None:
        """Wait until all messages of operations earlier than ``before`` were received.

        A peer that is gone is given to ``lost``, which may raise.
        """
        while self._sent and self._sent[0].sequence < before:
            sent = self._sent.popleft()
            try:
                with self._naming(sent.peer, sent.phase, deadline):
                    sent.work.wait(deadline.left)
            except EPPeerLostError as error:
                lost(error)

    def drop_unreceived(
        self, peers: list[int], deadline: Deadline, lost: Callable[[EPPeerLostError], None]
    ) -> None:
        """Receive and forget what ``peers`` sent; forget what the others may have sent.

        A peer that is gone is given to ``lost``, which may raise.
        """
        for (sequence, peer), phase in list(self._unreceived.items()):
            if peer not in peers:
                continue
            try:
                self.receive(sequence, peer, phase, deadline)
            except EPPeerLostError as error:
                lost(error)
        self._unreceived.clear()
        self._local.clear()

    def close(self) -> None:
        """Give peers a while to fetch what was sent, then drop all connections."""
        if self._group is None:
            return
        deadline = Deadline(int(_LINGER_S * 1e6))
        for sent in self._sent:
            with suppress(RuntimeError):  # the peer is gone, or takes no more: nothing to do
                sent.work.wait(deadline.left)
        self._sent.clear()
        self._group = None

    def _open_group(self) -> Any:
        if self._group is None:
            raise RuntimeError("the connections are closed")
        return self._group

    def _fetch(
        self, into: torch.Tensor, sequence: int, peer: int, phase: str, deadline: Deadline
    ) -> None:
        with self._naming(peer, phase, deadline):
            work = self._open_group().recv([into], peer, sequence % _TAGS)
            work.wait(deadline.left)

    @contextmanager
    def _naming(self, peer: int, phase: str, deadline: Deadline | None) -> Iterator[None]:
        """Turn gloo's errors into ours, which name the peer."""
        try:
            yield
        except RuntimeError as error:
            if deadline is not None and deadline.over:
                raise EPTimeoutError(
                    rank=self._rank, peer=peer, phase=phase, waited_us=deadline.waited_us
                ) from error
            reason = str(error).strip().splitlines()[0]
            raise EPPeerLostError(
                f"rank {self._rank}: {phase} lost the connection to rank {peer}: {reason}",
                rank=self._rank,
                peer=peer,
                phase=phase,
            ) from error
