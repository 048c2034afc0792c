"""Breaks this rank, or what it sends, at a point of a round.

The messages of the reference backend are caught where it hands them over: ``Messenger.send`` has
whole messages, ``Link.send`` what goes on the wire, checksums included.
"""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

from ep_runtime.backends import messages
from ep_runtime.backends.links import Link
from ep_runtime.backends.messages import Message, Messenger
from ep_runtime.group import RankGroup

if TYPE_CHECKING:
    import torch

    from faults.plan import Plan

SLOW = 0.75  # how fast a slow clock runs


class _SlowTime:
    """The module ``time``, slower from now on."""

    def __init__(self) -> None:
        self._begin = time.monotonic()

    def monotonic(self) -> float:
        return self._begin + (time.monotonic() - self._begin) * SLOW


class Injector:
    """Does in rank ``rank`` what the plan has for it; ``reach`` is told of each step before it."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self._plan = plan
        self._mine = rank == plan.victim
        if plan.fault == "slow clock" and rank == plan.slow:
            messages.time = _SlowTime()  # type: ignore[assignment]
        self._step = ""
        self._struck = False
        self._caught: list[tuple[type, str, Any]] = []
        self._copies: list[tuple[Any, torch.Tensor]] = []  # alive until they are fetched
        if self._mine:
            self._catch_gathers()
            if plan.backend == "reference":
                self._catch_messages()

    def undo(self) -> None:
        """Let this rank be as it was."""
        messages.time = time
        for owner, name, original in self._caught:
            setattr(owner, name, original)

    def _catch(self, owner: type, name: str, caught: Any) -> None:
        self._caught.append((owner, name, getattr(owner, name)))
        setattr(owner, name, caught)

    def reach(self, step: str) -> None:
        self._step = step
        plan = self._plan
        if self._mine and step == plan.step and not plan.within:
            self._strike()

    def _strike(self) -> None:
        """Happen, once; the faults of messages happen where those are sent."""
        if self._struck:
            return
        plan = self._plan
        if plan.fault in ("kill", "restart"):
            os.kill(os.getpid(), signal.SIGKILL)
        elif plan.fault == "stop":
            self._struck = True
            os.kill(os.getpid(), signal.SIGSTOP)
        elif plan.fault in ("late", "slow clock"):
            self._struck = True
            time.sleep(3 * plan.timeout_s)
        elif plan.fault == "delay":
            self._struck = True
            time.sleep(plan.timeout_s / 4)

    def _here(self) -> bool:
        return self._step == self._plan.step

    def _catch_gathers(self) -> None:
        """Within a creation is before its second gather."""
        gather, seen = RankGroup.gather, [0]

        def caught(ranks: RankGroup, value: Any, what: str) -> list[Any]:
            seen[0] += 1
            if self._plan.within and self._here() and seen[0] == 2:
                self._strike()
            return gather(ranks, value, what)

        self._catch(RankGroup, "gather", caught)

    def _catch_messages(self) -> None:
        send, send_link, plan = Messenger.send, Link.send, self._plan
        sent = [0]
        to_one = (plan.victim + 1) % plan.size

        def caught(
            messenger: Messenger, sequence: int, peer: int, message: Message, phase: str
        ) -> None:
            if peer == plan.victim or not self._here() or not phase.endswith("send"):
                return send(messenger, sequence, peer, message, phase)
            sent[0] += 1
            if plan.within and sent[0] == 2:
                self._strike()
            if plan.fault == "silence" or (plan.fault == "drop" and peer == to_one):
                messenger._unreceived[sequence, peer] = phase
                return None
            return send(messenger, sequence, peer, message, phase)

        def caught_link(link: Link, tensor: torch.Tensor, tag: int) -> Any:
            rows = tag % (1 + messages._MAX_PARTS) == messages._MAX_PARTS
            damage = {"corrupt head": tag % (1 + messages._MAX_PARTS) == 0, "corrupt rows": rows}
            if self._here() and damage.get(plan.fault, False):
                tensor = tensor.clone()
                # Past what tells the sizes: a receiver with others would wait, not read on.
                tensor.view(-1)[tensor.numel() // 2] ^= 4
            work = send_link(link, tensor, tag)
            if self._here() and plan.fault == "duplicate":
                self._copies.append((send_link(link, tensor, tag), tensor))
            return work

        self._catch(Messenger, "send", caught)
        self._catch(Link, "send", caught_link)
