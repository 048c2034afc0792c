"""One-to-one messages between ranks, with a bound on every wait.

They go over connections of our own (``links.py``), so that our tags and timeouts can't meddle with
the caller's traffic. A message says what it belongs to and carries checksums: one that was damaged,
repeated, or belongs to another operation is never taken for the one awaited.
"""

from __future__ import annotations

import re
import time
import zlib
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import torch

from ep_runtime.backends.links import connect
from ep_runtime.errors import EPDamagedError, EPError, EPPeerLostError, EPTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch.distributed as dist

    from ep_runtime.backends.links import Link
    from ep_runtime.group import RankGroup

FIELDS = 8  # integers that a message carries beside its parts
_MAX_PARTS = 2
_HEAD = 1 + 2 * _MAX_PARTS + FIELDS + 1  # sequence, sizes and checksums of parts, fields, checksum
_OPERATIONS = 16  # so many until a tag is used again; at most two are in flight
# For peers to fetch our last messages when the connections are closed; less after an error, when
# they may have given up like us.
_LINGER_S, _LINGER_AFTER_ERROR_S = 10.0, 1.0
_GRACE_S = 1.0  # for rows whose head has arrived when the time of their operation is up


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

    def left(self, least_s: float = 0.001) -> timedelta:
        """Give what a wait may take; gloo waits at least a millisecond."""
        least_us = min(int(least_s * 1e6), self._timeout_us)
        return timedelta(microseconds=max(1000, least_us, self._timeout_us - self.waited_us))


class Messenger:
    """Sends without waiting and receives with a deadline; ``sequence`` pairs the two sides.

    Creation is collective. Raises ValueError when the ranks are not a torch process group, EPError
    naming a rank that can't be reached.
    """

    def __init__(self, ranks: RankGroup) -> None:
        if ranks.store is None:
            raise ValueError(
                "The reference backend needs a torch process group, not an mpi4py comm."
            )
        self._rank = ranks.rank
        self._sent: deque[_Sent] = deque()
        self._local: dict[int, Message] = {}
        self._unreceived: dict[tuple[int, int], str] = {}  # (sequence, peer): phase
        self._links: dict[int, Link] = {}
        # Heads asked for and not looked at. Kept even if their operation fails: gloo writes there.
        self._heads: dict[tuple[int, int], tuple[dist.Work, torch.Tensor]] = {}
        self._open = True
        if ranks.size > 1:
            name = ranks.gather(uuid4().hex, "name of the connections")[0]
            self._links = connect(ranks.store, name, ranks.rank, ranks.size)

    def send(self, sequence: int, peer: int, message: Message, phase: str) -> None:
        """Start sending; the message's tensors must not change until the peer has received.

        The peer is taken to send one of the same ``sequence``, too.
        """
        self._unreceived[sequence, peer] = phase
        if peer == self._rank:
            self._local[sequence] = message
            return
        sizes, sums = [0] * _MAX_PARTS, [0] * _MAX_PARTS
        for number, part in enumerate(message.parts):
            sizes[number], sums[number] = part.numel(), _checksum(part)
        fields = [*message.fields, *[0] * (FIELDS - len(message.fields))]
        head = torch.tensor([sequence, *sizes, *sums, *fields, 0])
        head[-1] = _checksum(head[:-1])
        with self._naming(peer, phase):
            for place, tensor in enumerate((head, *message.parts)):
                if tensor.numel() > 0:
                    work = self._link(peer).send(tensor, _tag(sequence, place))
                    self._sent.append(_Sent(sequence, peer, phase, work, tensor))

    def ask(self, sequence: int, peer: int, phase: str) -> None:
        """Let the peer's message come while others are waited for. Raises EPPeerLostError."""
        if peer == self._rank:
            return
        head = torch.empty(_HEAD, dtype=torch.int64)
        with self._naming(peer, phase):
            work = self._link(peer).receive(head, _tag(sequence, 0))
        self._heads[sequence, peer] = work, head

    def receive(self, sequence: int, peer: int, phase: str, deadline: Deadline) -> Message:
        """Wait for the peer's message of the same ``sequence``.

        Raises an EPError that names the peer, whose connection is then closed.
        """
        self._unreceived.pop((sequence, peer), None)
        if peer == self._rank:
            return self._local.pop(sequence)
        while True:
            head = self._receive_head(sequence, peer, phase, deadline)
            theirs, *rest = head.tolist()
            sizes, sums = rest[:_MAX_PARTS], rest[_MAX_PARTS : 2 * _MAX_PARTS]
            if theirs > sequence:
                raise self._closed(
                    peer,
                    EPPeerLostError(
                        f"rank {self._rank}: {phase} is operation {sequence} here, but rank {peer} "
                        f"sent operation {theirs}: all ranks must make the same calls in the same "
                        "order.",
                        rank=self._rank,
                        peer=peer,
                        phase=phase,
                    ),
                )
            parts = []
            for place, size in enumerate(sizes, start=1):
                parts.append(torch.empty(size, dtype=torch.uint8))
                if size > 0:
                    with self._naming(peer, phase, deadline):
                        work = self._link(peer).receive(parts[-1], _tag(sequence, place))
                        work.wait(deadline.left(_GRACE_S))
            if theirs < sequence:
                continue  # a copy of a message of long ago
            if [_checksum(part) for part in parts] != sums:
                raise self._damaged(peer, phase)
            return Message(tuple(rest[2 * _MAX_PARTS : -1]), tuple(parts))

    def _receive_head(
        self, sequence: int, peer: int, phase: str, deadline: Deadline
    ) -> torch.Tensor:
        if (sequence, peer) not in self._heads:
            self.ask(sequence, peer, phase)
        work, head = self._heads[sequence, peer]
        with self._naming(peer, phase, deadline):
            work.wait(deadline.left())
        del self._heads[sequence, peer]
        if int(head[-1]) != _checksum(head[:-1]):
            raise self._damaged(peer, phase)
        return head

    def retire(self, before: int, deadline: Deadline, lost: Callable[[EPError], None]) -> None:
        """Wait until all messages of operations earlier than ``before`` were received.

        A peer that is gone or takes nothing is given to ``lost``, which may raise.
        """
        while self._sent and self._sent[0].sequence < before:
            sent = self._sent.popleft()
            if sent.peer not in self._links:
                continue  # closed since, and said so
            try:
                with self._naming(sent.peer, sent.phase, deadline):
                    sent.work.wait(deadline.left())
            except EPError as error:
                lost(error)

    def drop_unreceived(
        self, peers: list[int], deadline: Deadline, lost: Callable[[EPError], None]
    ) -> None:
        """Receive and forget what ``peers`` sent; forget what the others may have sent.

        A peer that is gone is given to ``lost``, which may raise.
        """
        for (sequence, peer), phase in list(self._unreceived.items()):
            if peer not in peers:
                continue
            try:
                self.receive(sequence, peer, phase, deadline)
            except EPError as error:
                lost(error)
        self._unreceived.clear()
        self._local.clear()

    def close(self, *, after_error: bool) -> None:
        """Give peers a while to fetch what was sent, then drop all connections."""
        linger_s = _LINGER_AFTER_ERROR_S if after_error else _LINGER_S
        deadline = Deadline(int(linger_s * 1e6))
        for sent in self._sent:
            if sent.peer in self._links:
                with suppress(RuntimeError):  # the peer is gone, or takes no more: nothing to do
                    sent.work.wait(deadline.left())
        self._open = False
        self._links.clear()
        self._sent.clear()
        self._heads.clear()

    def _link(self, peer: int) -> Link:
        if not self._open:
            raise RuntimeError("the connections are closed")
        if peer not in self._links:
            raise RuntimeError("it was closed after an earlier error; create the buffer again")
        return self._links[peer]

    def _closed(self, peer: int, error: EPError) -> EPError:
        """Drop the connection to a peer with which we are out of step."""
        self._links.pop(peer, None)
        return error

    def _damaged(self, peer: int, phase: str) -> EPError:
        return self._closed(peer, EPDamagedError(rank=self._rank, peer=peer, phase=phase))

    @contextmanager
    def _naming(self, peer: int, phase: str, deadline: Deadline | None = None) -> Iterator[None]:
        """Turn gloo's errors into ours, which name the peer."""
        try:
            yield
        except RuntimeError as error:
            if deadline is not None and "Timed out" in str(error):
                raise self._closed(
                    peer,
                    EPTimeoutError(
                        rank=self._rank, peer=peer, phase=phase, waited_us=deadline.waited_us
                    ),
                ) from error
            # gloo's place in its source and its advice say nothing to our reader.
            reason = re.sub(r"^\[[^]]*\] ", "", str(error).strip()).split(". ")[0]
            raise self._closed(
                peer,
                EPPeerLostError(
                    f"rank {self._rank}: {phase} lost the connection to rank {peer}: {reason}",
                    rank=self._rank,
                    peer=peer,
                    phase=phase,
                ),
            ) from error


def _tag(sequence: int, place: int) -> int:
    """Tell heads and parts apart: gloo ends the process when sizes differ under one tag."""
    return sequence % _OPERATIONS * (1 + _MAX_PARTS) + place


def _checksum(tensor: torch.Tensor) -> int:
    return zlib.crc32(tensor.numpy().data)
