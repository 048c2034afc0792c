"""A few of the rounds that ``scripts/reliability`` runs many of, and the places it can't reach."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import torch.distributed as dist
from ep_runtime.backends.messages import Deadline
from ep_runtime.errors import EPError, EPPeerLostError, EPTimeoutError
from ep_runtime.gather import StoreGather
from faults.judge import run_round
from faults.plan import Plan
from faults.table import section
from reliability_page import write

if TYPE_CHECKING:
    from pathlib import Path

    from faults.judge import Result

ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": ""}
ROUNDS = [
    Plan("kill", "create", victim=1, within=True),
    Plan("late", "create", victim=0, timeout_s=1.5),
    Plan("kill", "dispatch send", victim=0, within=True),
    Plan("stop", "dispatch receive", victim=2, shrink=True),
    Plan("restart", "combine send", victim=1, shrink=True),
    Plan("silence", "combine send", victim=0, shrink=True, hooks=False),
    Plan("stop", "clean", victim=1),
    Plan("corrupt rows", "dispatch send", victim=1, hooks=False),
    Plan("corrupt head", "combine send", victim=2, shrink=True),
    Plan("duplicate", "combine send", victim=0),
    Plan("delay", "combine receive", victim=1),
    Plan("drop", "dispatch send", victim=1),
    Plan("stop", "destroy", victim=0),
]


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    """All rounds, a few at once: they wait most of the time."""
    with ThreadPoolExecutor(4) as pool:
        done = pool.map(lambda plan: run_round(plan, ENVIRONMENT), ROUNDS)
        return {str(result.plan): result for result in done}


@pytest.mark.parametrize("plan", ROUNDS, ids=str)
def test_round(plan: Plan, results: dict[str, Result]) -> None:
    result = results[str(plan)]
    assert not result.problems, "\n".join(result.problems)
    assert result.wrong == result.hung == 0


def store_within(seconds: float, store: dist.Store | None = None) -> dist.Store:
    store = store or dist.HashStore()  # type: ignore[attr-defined]
    store.set_timeout(timedelta(seconds=seconds))
    return store


def test_a_gather_names_who_did_not_come() -> None:
    store = store_within(0.2)
    store.set("ep_runtime/gather/1/0", repr(("the thing", 5)))
    with pytest.raises(EPTimeoutError, match=r"rank 1: create waited \d+ us for rank 2") as caught:
        StoreGather(store, 1, 3)(7, "the thing")
    assert (caught.value.rank, caught.value.peer, caught.value.phase) == (1, 2, "create")


def test_a_late_rank_hears_that_it_was_given_up_and_all_go_on_from_there() -> None:
    store = store_within(0.2)
    early, late = StoreGather(store, 0, 2), StoreGather(store, 1, 2)
    with pytest.raises(EPTimeoutError):
        early(1, "the thing")
    with pytest.raises(EPError, match="rank 0 gave up waiting for rank 1") as caught:
        late(2, "the thing")
    assert caught.value.peer == 0
    store.set("ep_runtime/gather/2/1", repr(("the thing", 4)))
    assert early(3, "the thing") == [3, 4]
    assert late(4, "the thing") == [3, 4]


def test_ranks_at_different_places_of_a_creation_are_told() -> None:
    store = store_within(5)
    store.set("ep_runtime/gather/1/0", repr(("other thing", 5)))
    with pytest.raises(EPError, match="come to the thing, but rank 0 was at its other thing"):
        StoreGather(store, 1, 2)(7, "thing")


def test_nothing_that_arrives_is_run() -> None:
    """A value is a literal: a call, a name or a pickle is refused."""
    for hostile in (b"__import__('os').abort()", b"\x80\x04.", b"open", b"('thing', open)"):
        store = store_within(5)
        store.set("ep_runtime/gather/1/0", hostile)
        with pytest.raises(EPError, match="rank 0 left what is no value") as caught:
            StoreGather(store, 1, 2)(7, "thing")
        assert caught.value.peer == 0


def _stopped_store() -> tuple[int, int]:
    """Port and process of a store whose process is stopped."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(theirs, str(server.port).encode())
        time.sleep(600)
        os._exit(0)
    port = int(os.read(ours, 16))
    os.close(ours)
    os.close(theirs)
    return port, child


def test_a_store_that_does_not_answer_ends_the_wait() -> None:
    port, child = _stopped_store()
    try:
        store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=20))
        store.set_timeout(timedelta(seconds=0.5))
        gather = StoreGather(store, 0, 2)
        os.kill(child, signal.SIGSTOP)
        with pytest.raises(EPTimeoutError, match="store of the process group does not answer"):
            gather(1, "thing")
        os.kill(child, signal.SIGKILL)
        with pytest.raises(EPPeerLostError, match="create lost the store of the process group"):
            StoreGather(store, 0, 2)(1, "thing")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_wait_is_at_least_what_gloo_can_count_and_no_longer_than_the_timeout() -> None:
    deadline = Deadline(1)
    assert deadline.left() == timedelta(milliseconds=1)
    assert Deadline(400_000).left(1.0) <= timedelta(milliseconds=400)
    assert Deadline(5_000_000).left(1.0) > timedelta(seconds=4)


def test_the_page_takes_a_table(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- begin peer -->\nold\n<!-- end peer -->\nb\n")
    result = run_round(Plan("none", "create", victim=0), ENVIRONMENT)
    write(page, "peer", section([result], "about"))
    text = page.read_text()
    assert "old" not in text
    assert "|none | before create | raise | 1 | 1 | - | - | 0 | 0 | 0|" in text
    with pytest.raises(ValueError, match="no marks"):
        write(page, "reference", "")
