"""Errors that name who was waited for. All are RuntimeErrors, as callers of DeepEP expect."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """Say ``error`` in one line; its kind where it says nothing."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


class EPError(RuntimeError):
    """Something went wrong between this rank and a peer.

    ``rank`` is this process's rank, ``peer`` the other one (None when it is not known which),
    ``phase`` such as ``"dispatch receive"``.
    """

    def __init__(self, message: str, *, rank: int, peer: int | None, phase: str) -> None:
        super().__init__(message)
        self.rank = rank
        self.peer = peer
        self.phase = phase


class EPPeerLostError(EPError):
    """A peer's connection is gone: its process ended or its host went away."""


class EPDamagedError(EPError):
    """What a peer sent does not have the checksum that it sent along."""

    def __init__(self, *, rank: int, peer: int, phase: str) -> None:
        super().__init__(
            f"rank {rank}: {phase} got a damaged message from rank {peer}: its checksum differs.",
            rank=rank,
            peer=peer,
            phase=phase,
        )


class EPTimeoutError(EPError):
    """A peer did not do its part within the timeout.

    ``waited_us`` is how long this rank waited, in microseconds; ``expert`` is the local expert
    whose rows were waited for, None where the wait was not for one expert.
    """

    def __init__(
        self,
        *,
        rank: int,
        peer: int | None,
        phase: str,
        waited_us: int,
        expert: int | None = None,
        detail: str = "",
    ) -> None:
        who = "the other ranks" if peer is None else f"rank {peer}"
        what = "" if expert is None else f" (local expert {expert})"
        message = f"rank {rank}: {phase} waited {waited_us} us for {who}{what}"
        super().__init__(
            message + (f": {detail}" if detail else "."), rank=rank, peer=peer, phase=phase
        )
        self.waited_us = waited_us
        self.expert = expert
