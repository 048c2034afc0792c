"""Every interleaving of the low-latency protocol, for few ranks and operations.

A model of docs/kernels.md in the words of csrc/cuda/device/protocol.cuh: epochs, slots, rows with
flags, acknowledgement words posted at the start of a launch. Stores to peers are messages that
arrive in any order, but for two stores to one word. A flag travels with its row, since it never
overtakes it; so does the count, which a receive waits for as well. What a rank sends to itself is
left out: it cannot outrun itself. ``explore`` visits all reachable states and returns the first
fault:

- ``early read``: a receive used a row whose data was not that of its epoch;
- ``overwrite``: a row was overwritten that its receiver had yet to read;
- ``no way on``: some living rank has not finished, and nothing can happen any more.

Left out: clean, and rejoining, which the runtime does not have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

DISPATCH, COMBINE = 0, 1
SEND, RECEIVE = 1, 2


class Launch(NamedTuple):
    """One kernel launch: its kind, its epoch of that kind (from 1), its phases."""

    kind: int
    epoch: int
    phases: int


def slot_of(epoch: int) -> int:
    return epoch & 1


def earlier_in_slot(epoch: int) -> int:
    return (epoch - 1) >> 1


@dataclass(frozen=True)
class Rules:
    """The protocol, and ways to break it on purpose."""

    flag_behind_row: bool = True
    waits_for_acknowledgement: bool = True
    acknowledges_after_reading: bool = True
    flag_holds_epoch: bool = True
    deadlines: bool = True


class Message(NamedTuple):
    """A store on its way. ``what`` is "row", "flag" or "ack"; an ack has kind and slot 0."""

    source: int
    target: int
    what: str
    kind: int
    slot: int
    value: int | tuple[int, ...]  # epoch, or completed receives


class Rank(NamedTuple):
    """Where a rank is. ``sent`` and ``read``: peers that the current launch is done with."""

    launch: int
    posted: bool
    sent: frozenset[int]
    read: frozenset[int]
    receives: tuple[int, ...]  # completed, by 2 * kind + slot
    masked: frozenset[int]
    alive: bool


class State(NamedTuple):
    """``memory``: words that are not zero, by (rank, source, what, kind, slot)."""

    ranks: tuple[Rank, ...]
    memory: frozenset[tuple[tuple[int, int, str, int, int], int | tuple[int, ...]]]
    unread: frozenset[tuple[int, int, int, int]]  # (receiver, source, kind, slot)
    flying: tuple[Message, ...]  # sorted by source, target, and time


class Fault(Exception):  # noqa: N818 - a finding, not a program's error
    """What went wrong."""


class Explorer:
    """All states of ``program`` on ``size`` ranks. At most one rank dies, if ``may_die``."""

    def __init__(
        self, program: list[Launch], size: int, rules: Rules, *, may_die: bool = False
    ) -> None:
        self.program, self.size, self.rules, self.may_die = program, size, rules, may_die

    def initial(self) -> State:
        nobody: frozenset[int] = frozenset()
        rank = Rank(0, False, nobody, nobody, (0, 0, 0, 0), nobody, True)
        return State((rank,) * self.size, frozenset(), frozenset(), ())

    def explore(self, limit: int = 2_000_000) -> str | None:
        """Return the first fault, or None. Raises RuntimeError beyond ``limit`` states."""
        start = self.initial()
        seen, waiting = {start}, [start]
        self.states = 1
        while waiting:
            state = waiting.pop()
            try:
                following = list(self.steps(state))
            except Fault as fault:
                return str(fault)
            if not following and not self._finished(state):
                return "no way on"
            for successor in following:
                if successor not in seen:
                    seen.add(successor)
                    waiting.append(successor)
            self.states = len(seen)
            if self.states > limit:
                raise RuntimeError(f"more than {limit} states")
        return None

    def _finished(self, state: State) -> bool:
        return all(not rank.alive or rank.launch == len(self.program) for rank in state.ranks)

    def steps(self, state: State) -> Iterator[State]:
        """Give all successors of ``state``."""
        yield from self._arrivals(state)
        for number, rank in enumerate(state.ranks):
            if not rank.alive or rank.launch == len(self.program):
                continue
            yield from self._launch_steps(state, number, rank)
            if self.may_die and all(other.alive for other in state.ranks):
                yield self._with_rank(state, number, rank._replace(alive=False))

    # -- stores that arrive

    def _arrivals(self, state: State) -> Iterator[State]:
        blocked: set[tuple[int, int, str, int, int]] = set()
        for index, message in enumerate(state.flying):
            word = (message.source, message.target, message.what, message.kind, message.slot)
            behind = word in blocked  # an earlier store to the same word
            blocked.add(word)
            if not behind:
                yield self._arrive(state, index, message)

    def _arrive(self, state: State, index: int, message: Message) -> State:
        unread = state.unread
        place = (message.target, message.source, message.kind, message.slot)
        if message.what == "row":
            if place in unread and self._will_read(state, message):
                raise Fault("overwrite")
            unread |= {place}
        address = (message.target, message.source, message.what, message.kind, message.slot)
        memory = dict(state.memory)
        memory[address] = message.value
        if message.what == "row" and self.rules.flag_behind_row:
            memory[(*address[:2], "flag", *address[3:])] = self._flag(message.value)
        return state._replace(
            memory=frozenset(memory.items()),
            unread=unread,
            flying=state.flying[:index] + state.flying[index + 1 :],
        )

    def _will_read(self, state: State, message: Message) -> bool:
        receiver = state.ranks[message.target]
        return receiver.alive and message.source not in receiver.masked

    # -- what a launch does

    def _launch_steps(self, state: State, number: int, rank: Rank) -> Iterator[State]:
        launch = self.program[rank.launch]
        if not rank.posted:
            yield self._post_acknowledgements(state, number, rank, launch)
            return
        peers = set(range(self.size)) - rank.masked - {number}
        # One order of peers is enough: how long each store takes is free.
        if launch.phases & SEND and peers - rank.sent:
            yield from self._send(state, number, rank, launch, min(peers - rank.sent))
        elif launch.phases & RECEIVE and peers - rank.read:
            yield from self._read(state, number, rank, launch, min(peers - rank.read))
        else:
            yield self._complete(state, number, rank, launch)

    def _post_acknowledgements(
        self, state: State, number: int, rank: Rank, launch: Launch
    ) -> State:
        receives = list(rank.receives)
        if not self.rules.acknowledges_after_reading and launch.phases & RECEIVE:
            receives[2 * launch.kind + slot_of(launch.epoch)] += 1
        posted = state
        for peer in set(range(self.size)) - {number}:
            message = Message(number, peer, "ack", 0, 0, tuple(receives))
            if self._is_news(posted, message):
                posted = self._fly(posted, message)
        return self._with_rank(posted, number, rank._replace(posted=True))

    def _is_news(self, state: State, message: Message) -> bool:
        """Words that change nothing are left out: they only multiply states."""
        flying = [other.value for other in state.flying if other[:5] == message[:5]]
        address = (message.target, message.source, "ack", 0, 0)
        last = flying[-1] if flying else dict(state.memory).get(address, (0, 0, 0, 0))
        return message.value != last

    def _flag(self, epoch: int) -> int:
        return epoch if self.rules.flag_holds_epoch else 1

    def _send(
        self, state: State, number: int, rank: Rank, launch: Launch, peer: int
    ) -> Iterator[State]:
        slot = slot_of(launch.epoch)
        completed = dict(state.memory).get((number, peer, "ack", 0, 0), (0, 0, 0, 0))
        acknowledged = completed[2 * launch.kind + slot] >= earlier_in_slot(launch.epoch)
        if self.rules.waits_for_acknowledgement and not acknowledged:
            yield from self._expire(state, number, rank, peer)
            return
        row = Message(number, peer, "row", launch.kind, slot, launch.epoch)
        following = self._fly(state, row)
        if not self.rules.flag_behind_row:
            flag = row._replace(what="flag", value=self._flag(launch.epoch))
            following = self._fly(following, flag)
        yield self._with_rank(following, number, rank._replace(sent=rank.sent | {peer}))

    def _read(
        self, state: State, number: int, rank: Rank, launch: Launch, peer: int
    ) -> Iterator[State]:
        slot = slot_of(launch.epoch)
        memory = dict(state.memory)
        if memory.get((number, peer, "flag", launch.kind, slot)) != self._flag(launch.epoch):
            yield from self._expire(state, number, rank, peer)
            return
        if memory.get((number, peer, "row", launch.kind, slot)) != launch.epoch:
            raise Fault("early read")
        following = state._replace(unread=state.unread - {(number, peer, launch.kind, slot)})
        yield self._with_rank(following, number, rank._replace(read=rank.read | {peer}))

    def _expire(self, state: State, number: int, rank: Rank, peer: int) -> Iterator[State]:
        """A deadline is far longer than any delivery: it passes only for a peer that is dead."""
        dead = not state.ranks[peer].alive
        gone = not any(message.source == peer for message in state.flying)
        if self.rules.deadlines and dead and gone:
            yield self._with_rank(state, number, rank._replace(masked=rank.masked | {peer}))

    def _complete(self, state: State, number: int, rank: Rank, launch: Launch) -> State:
        receives = list(rank.receives)
        if launch.phases & RECEIVE:
            receives[2 * launch.kind + slot_of(launch.epoch)] += 1
        nobody: frozenset[int] = frozenset()
        done = rank._replace(
            launch=rank.launch + 1, posted=False, sent=nobody, read=nobody, receives=tuple(receives)
        )
        return self._with_rank(state, number, done)

    # -- making states

    @staticmethod
    def _with_rank(state: State, number: int, rank: Rank) -> State:
        ranks = (*state.ranks[:number], rank, *state.ranks[number + 1 :])
        return state._replace(ranks=ranks)

    @staticmethod
    def _fly(state: State, message: Message) -> State:
        flying = sorted((*state.flying, message), key=lambda other: other[:2])
        return state._replace(flying=tuple(flying))
