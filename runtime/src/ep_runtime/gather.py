"""Gathers small values of all ranks, within a bound in time that the caller's group sets.

The values travel through the store in which the process group met, not over the group: a gather
over the group would hang for as long as a rank is stopped, could not tell which one it is, and
would unpickle what arrives. Here values are Python literals, and nothing is unpickled.
"""

from __future__ import annotations

import ast
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torch.distributed.distributed_c10d import PrefixStore, Store, _get_process_group_store

from ep_runtime.errors import EPError, EPPeerLostError, EPTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch.distributed as dist

PHASE = "create"
_ANSWER_S = 5.0  # what the store may take to answer beyond the wait that it was asked for


class _NotThereError(Exception):
    """The store answered that a key did not come in time."""


class StoreGather:
    """The gathers of one process group, numbered alike on all ranks.

    A rank that waits in vain leaves word of it in place of its value, so that a rank which comes
    late is not misled by what the others had said, and both count on from there.
    """

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self.store = PrefixStore("ep_runtime", store)
        self.timeout: timedelta = store.timeout  # type: ignore[attr-defined]
        self._rank, self._size = rank, size
        self._number = 0

    def __call__(self, value: Any, what: str) -> list[Any]:
        """Give the ``value`` of every rank, in rank order; ``what`` must be the same on all.

        Values are literals: numbers, strings, bytes, None, and tuples or sets of them. Raises
        EPTimeoutError naming the first rank that did not come, EPError for one that was elsewhere.
        """
        self._number += 1
        keys = [self._key(self._number, rank) for rank in range(self._size)]
        begin = time.monotonic()
        self._ask(self.store.set, keys[self._rank], repr((what, value)))
        try:
            self._ask(self.store.wait, keys, self.timeout)
        except _NotThereError:
            self._give_up(keys, begin)
        texts = self._ask(self._fetch, keys)
        values = [self._read(rank, text, what) for rank, text in enumerate(texts)]
        if self._number > 1:  # all have come here, so all have read what came before
            self._ask(self.store.delete_key, self._key(self._number - 1, self._rank))
        return values

    @staticmethod
    def _key(number: int, rank: int) -> str:
        return f"gather/{number}/{rank}"

    def _fetch(self, keys: list[str]) -> list[bytes]:
        if self.store.has_extended_api():  # type: ignore[attr-defined]
            return list(self.store.multi_get(keys))
        return [self.store.get(key) for key in keys]

    def _give_up(self, keys: list[str], begin: float) -> None:
        """Raise for the first rank that has not come; return if all have in the meantime."""
        waited_us = int((time.monotonic() - begin) * 1e6)
        missing = [rank for rank, key in enumerate(keys) if not self._ask(self.store.check, [key])]
        if not missing:
            return
        self._ask(self.store.set, keys[self._rank], repr((None, missing[0])))
        raise EPTimeoutError(rank=self._rank, peer=missing[0], phase=PHASE, waited_us=waited_us)

    def _read(self, rank: int, text: bytes, what: str) -> Any:
        try:
            theirs, value = ast.literal_eval(text.decode())
        except (ValueError, SyntaxError, TypeError):
            did = "left what is no value"
        else:
            if theirs == what:
                return value
            did = f"gave up waiting for rank {value}" if theirs is None else f"was at its {theirs}"
        raise EPError(
            f"rank {self._rank}: {PHASE} has come to the {what}, but rank {rank} {did}: all ranks "
            "must create the buffer again.",
            rank=self._rank,
            peer=rank,
            phase=PHASE,
        )

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call the store, which may never answer: its process may be stopped.

        torch bounds the wait for a key, but not the wait for the store itself. The thread of a
        call that was given up ends when the store answers or its connection breaks.
        """
        answer: list[Any] = []
        problem: list[RuntimeError] = []

        def ask() -> None:
            try:
                answer.append(call(*arguments))
            except RuntimeError as error:
                problem.append(error)

        begin = time.monotonic()
        thread = threading.Thread(target=ask, name="ep-runtime-store", daemon=True)
        thread.start()
        thread.join(self.timeout.total_seconds() + _ANSWER_S)
        if answer:
            return answer[0]
        if not problem:
            raise EPTimeoutError(
                rank=self._rank,
                peer=None,
                phase=PHASE,
                waited_us=int((time.monotonic() - begin) * 1e6),
                detail="the store of the process group does not answer; is its process stopped?",
            )
        if "imeout" in str(problem[0]):
            raise _NotThereError from problem[0]
        raise EPPeerLostError(
            f"rank {self._rank}: {PHASE} lost the store of the process group: {problem[0]}",
            rank=self._rank,
            peer=None,
            phase=PHASE,
        ) from problem[0]


_gathers: WeakKeyDictionary[dist.ProcessGroup, StoreGather] = WeakKeyDictionary()


def gather_of(group: dist.ProcessGroup) -> StoreGather | None:
    """Give the gathers of a process group; None for one that torch keeps no store of."""
    if group not in _gathers:
        try:
            store = _get_process_group_store(group)
        except (KeyError, ValueError):
            return None
        _gathers[group] = StoreGather(store, group.rank(), group.size())
    return _gathers[group]
