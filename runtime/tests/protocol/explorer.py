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

A clean meets twice and zeroes its words in between. A creation gives all ranks new memory; a rank
that died comes back there, which is how a restarted process joins again. ``STATES`` are a rank's
within a launch; the kernels name them where they reach them ("State: posted").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

DISPATCH, COMBINE, CLEAN, CREATE = 0, 1, 2, 3
SEND, RECEIVE = 1, 2

POSTED, SENT, READ, COMPLETE = "posted", "sent", "read", "complete"
MET, ZEROED = "met", "zeroed"
STATES = (POSTED, SENT, READ, COMPLETE, MET, ZEROED)


class Launch(NamedTuple):
    """One kernel launch, or a creation: its kind, its epoch of that kind (from 1), its phases.

    Epochs begin again with a creation. A clean and a creation have no phases.
    """

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
    clean_settles: bool = True
    clean_meets_after_zeroing: bool = True
    barrier_may_be_one_ahead: bool = True
    creation_waits_for_all: bool = True


class Message(NamedTuple):
    """A store on its way. ``what`` is "row", "flag", "ack" or "barrier"; the last two have kind 0.

    It goes to the memory of ``incarnation``, which its sender had mapped.
    """

    source: int
    target: int
    what: str
    kind: int
    slot: int
    value: int | tuple[int, ...]  # epoch, completed receives, or barriers passed
    incarnation: int = 0


class Rank(NamedTuple):
    """Where a rank is. ``sent`` and ``read``: peers that the current launch is done with."""

    launch: int
    state: str
    sent: frozenset[int]
    read: frozenset[int]
    receives: tuple[int, ...]  # completed, by 2 * kind + slot
    masked: frozenset[int]
    alive: bool
    incarnation: int = 0
    lost_in: int = -1  # the incarnation in which it died, once it is back


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
        rank = Rank(0, "", nobody, nobody, (0, 0, 0, 0), nobody, True)
        return State((rank,) * self.size, frozenset(), frozenset(), ())

    def explore(self, limit: int = 2_000_000) -> str | None:
        """Return the first fault, or None. Raises RuntimeError beyond ``limit`` states."""
        start = self.initial()
        seen, waiting = {start}, [start]
        self.states, self.returned = 1, 0
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
            if not rank.alive:
                yield from self._restart(state, number, rank)
                continue
            if rank.launch == len(self.program):
                continue
            yield from self._launch_steps(state, number, rank)
            if self._may_die_now(state, rank):
                yield self._with_rank(state, number, rank._replace(alive=False))

    def _may_die_now(self, state: State, rank: Rank) -> bool:
        """Tell whether nobody died yet. A death in a creation ends that creation for all."""
        creating = self.program[rank.launch].kind == CREATE
        nobody_yet = all(other.alive and other.lost_in < 0 for other in state.ranks)
        return self.may_die and nobody_yet and not creating

    # -- stores that arrive

    def _arrivals(self, state: State) -> Iterator[State]:
        blocked: set[tuple[int, int, str, int, int]] = set()
        for index, message in enumerate(state.flying):
            word = (message.source, message.target, message.what, message.kind, message.slot)
            behind = word in blocked  # an earlier store to the same word
            if message.what == "barrier":  # is released behind all that its sender has stored
                pair = (message.source, message.target)
                behind |= any(other[:2] == pair for other in blocked)
            blocked.add(word)
            if not behind:
                yield self._arrive(state, index, message)

    def _arrive(self, state: State, index: int, message: Message) -> State:
        rest = state._replace(flying=state.flying[:index] + state.flying[index + 1 :])
        if message.incarnation != state.ranks[message.target].incarnation:
            return rest  # that memory is not in use any more
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
        return rest._replace(memory=frozenset(memory.items()), unread=unread)

    def _will_read(self, state: State, message: Message) -> bool:
        receiver = state.ranks[message.target]
        return receiver.alive and message.source not in receiver.masked

    # -- what a launch does

    def _launch_steps(self, state: State, number: int, rank: Rank) -> Iterator[State]:
        launch = self.program[rank.launch]
        if launch.kind == CREATE:
            yield from self._create(state, number, rank)
            return
        if launch.kind == CLEAN:
            yield from self._clean(state, number, rank, launch)
            return
        if not rank.state:
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
        return self._with_rank(posted, number, rank._replace(state=POSTED))

    def _is_news(self, state: State, message: Message) -> bool:
        """Words that change nothing are left out: they only multiply states."""
        mapped = state.ranks[message.source].incarnation
        flying = [
            other.value
            for other in state.flying
            if other[:5] == message[:5] and other.incarnation == mapped
        ]
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
        sent = rank._replace(sent=rank.sent | {peer}, state=SENT)
        yield self._with_rank(following, number, sent)

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
        read = rank._replace(read=rank.read | {peer}, state=READ)
        yield self._with_rank(following, number, read)

    def _expire(self, state: State, number: int, rank: Rank, peer: int) -> Iterator[State]:
        """A deadline is far longer than any delivery: it passes only for a peer that was lost."""
        lost = state.ranks[peer].lost_in == rank.incarnation
        dead = not state.ranks[peer].alive or lost
        gone = not any(message.source == peer for message in state.flying)
        if self.rules.deadlines and dead and gone:
            yield self._with_rank(state, number, rank._replace(masked=rank.masked | {peer}))

    def _complete(self, state: State, number: int, rank: Rank, launch: Launch) -> State:
        receives = list(rank.receives)
        if launch.phases & RECEIVE:
            receives[2 * launch.kind + slot_of(launch.epoch)] += 1
        return self._next_launch(state, number, rank._replace(receives=tuple(receives)))

    def _next_launch(self, state: State, number: int, rank: Rank) -> State:
        """Reach COMPLETE."""
        nobody: frozenset[int] = frozenset()
        done = rank._replace(launch=rank.launch + 1, state="", sent=nobody, read=nobody)
        return self._with_rank(state, number, done)

    # -- clean: two barriers, and between them the words of this rank are zeroed

    def _clean(self, state: State, number: int, rank: Rank, launch: Launch) -> Iterator[State]:
        first, second = 2 * launch.epoch - 1, 2 * launch.epoch
        peers = set(range(self.size)) - rank.masked - {number}
        if not rank.state:
            yield self._post_barrier(state, number, rank._replace(state=MET), first)
            return
        awaited = first if rank.state == MET else second
        if rank.state == ZEROED and not self.rules.clean_meets_after_zeroing:
            peers = set()
        if peers - rank.read:
            yield from self._pass_barrier(state, number, rank, min(peers - rank.read), awaited)
        elif rank.state == MET:
            zeroed = self._zero(state, number, rank)
            nobody: frozenset[int] = frozenset()
            after = zeroed.ranks[number]._replace(state=ZEROED, read=nobody)
            yield self._post_barrier(zeroed, number, after, second)
        else:
            yield self._next_launch(state, number, rank)

    def _post_barrier(self, state: State, number: int, rank: Rank, value: int) -> State:
        posted = self._with_rank(state, number, rank)
        for peer in set(range(self.size)) - rank.masked - {number}:
            posted = self._fly(posted, Message(number, peer, "barrier", 0, 0, value))
        return posted

    def _pass_barrier(
        self, state: State, number: int, rank: Rank, peer: int, value: int
    ) -> Iterator[State]:
        seen = dict(state.memory).get((number, peer, "barrier", 0, 0), 0)
        ahead = self.rules.barrier_may_be_one_ahead and seen == value + 1
        if seen == value or ahead:
            yield self._with_rank(state, number, rank._replace(read=rank.read | {peer}))
        else:
            yield from self._expire(state, number, rank, peer)

    def _zero(self, state: State, number: int, rank: Rank) -> State:
        """Forget flags and acknowledgements; what was sent and not received counts as received."""
        receives = list(rank.receives)
        if self.rules.clean_settles:
            for kind in (DISPATCH, COMBINE):
                sends = self._sends_before(rank.launch, kind)
                receives[2 * kind], receives[2 * kind + 1] = sends // 2, (sends + 1) // 2
        memory = {
            address: value
            for address, value in state.memory
            if address[0] != number or address[2] in ("row", "barrier")
        }
        unread = frozenset(place for place in state.unread if place[0] != number)
        zeroed = state._replace(memory=frozenset(memory.items()), unread=unread)
        return self._with_rank(zeroed, number, rank._replace(receives=tuple(receives)))

    def _sends_before(self, index: int, kind: int) -> int:
        before = self.program[:index]
        created = [at for at, launch in enumerate(before) if launch.kind == CREATE]
        since = before[created[-1] + 1 :] if created else before
        return sum(launch.kind == kind and bool(launch.phases & SEND) for launch in since)

    # -- creation: new memory for everybody, and the way back for a rank that died

    def _create(self, state: State, number: int, rank: Rank) -> Iterator[State]:
        wanted = sum(launch.kind == CREATE for launch in self.program[: rank.launch + 1])
        if rank.incarnation < wanted:
            yield self._new_memory(state, number, rank, wanted)
            return
        all_there = all(other.incarnation >= wanted for other in state.ranks)
        if all_there or not self.rules.creation_waits_for_all:
            yield self._next_launch(state, number, rank)

    def _new_memory(self, state: State, number: int, rank: Rank, incarnation: int) -> State:
        nobody: frozenset[int] = frozenset()
        return state._replace(
            ranks=self._with_rank(
                state,
                number,
                rank._replace(receives=(0, 0, 0, 0), masked=nobody, incarnation=incarnation),
            ).ranks,
            memory=frozenset(item for item in state.memory if item[0][0] != number),
            unread=frozenset(place for place in state.unread if place[0] != number),
            flying=tuple(message for message in state.flying if message.target != number),
        )

    def _restart(self, state: State, number: int, rank: Rank) -> Iterator[State]:
        """Start a new process for a dead rank, which takes part in the next creation."""
        for index in range(rank.launch, len(self.program)):
            if self.program[index].kind == CREATE:
                self.returned += 1
                nobody: frozenset[int] = frozenset()
                yield self._with_rank(
                    state,
                    number,
                    Rank(
                        index,
                        "",
                        nobody,
                        nobody,
                        (0, 0, 0, 0),
                        nobody,
                        alive=True,
                        incarnation=rank.incarnation,
                        lost_in=rank.incarnation,
                    ),
                )
                return

    # -- making states

    @staticmethod
    def _with_rank(state: State, number: int, rank: Rank) -> State:
        ranks = (*state.ranks[:number], rank, *state.ranks[number + 1 :])
        return state._replace(ranks=ranks)

    @staticmethod
    def _fly(state: State, message: Message) -> State:
        sent = message._replace(incarnation=state.ranks[message.source].incarnation)
        flying = sorted((*state.flying, sent), key=lambda other: other[:2])
        return state._replace(flying=tuple(flying))
