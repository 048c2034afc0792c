"""The protocol's model keeps its invariants, and breaking any of its rules is found out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from explorer import COMBINE, DISPATCH, RECEIVE, SEND, Explorer, Launch, Rules

BOTH = SEND | RECEIVE


def program(text: str) -> list[Launch]:
    """``d`` and ``c``: dispatch and combine in one launch; ``d>`` sends only, ``d<`` receives."""
    counts = {(kind, phase): 0 for kind in (DISPATCH, COMBINE) for phase in (SEND, RECEIVE)}
    launches = []
    for word in text.split():
        kind = DISPATCH if word[0] == "d" else COMBINE
        phases = {"": BOTH, ">": SEND, "<": RECEIVE}[word[1:]]
        for phase in (SEND, RECEIVE):
            counts[kind, phase] += bool(phases & phase)
        epoch = counts[kind, SEND if phases & SEND else RECEIVE]
        launches.append(Launch(kind, epoch, phases))
    return launches


# What callers do: pairs in a row, hooks, two micro-batches, receives in either order of kinds.
PROGRAMS = [
    "d d d d",
    "d c d c d c",
    "d> d< d> d< d> d<",
    "d> d> d< d< d> d> d< d<",
    "d> d< c> c< d> d< c> c<",
    "d> d> d< c> d< c> c< c<",
    "d> d< d> c> d< c< d> d<",
    "c c c c",
]


@pytest.mark.parametrize("text", PROGRAMS)
def test_two_ranks(text: str) -> None:
    explorer = Explorer(program(text), 2, Rules())
    assert explorer.explore() is None
    assert explorer.states > 100


@pytest.mark.parametrize("text", ["d d", "d> d<"])
def test_three_ranks(text: str) -> None:
    assert Explorer(program(text), 3, Rules()).explore() is None


@pytest.mark.parametrize("text", PROGRAMS[:5])
def test_a_rank_that_dies_anywhere_holds_nobody(text: str) -> None:
    assert Explorer(program(text), 2, Rules(), may_die=True).explore() is None


def test_more_than_two_results_alive_would_wait_forever() -> None:
    """Why a third send without a receive is refused by the launcher."""
    assert Explorer(program("d> d> d> d< d< d<"), 2, Rules()).explore() == "no way on"


@pytest.mark.parametrize(
    ("broken", "text", "fault"),
    [
        ({"flag_behind_row": False}, "d d d", "early read"),
        ({"flag_holds_epoch": False}, "d d d", "early read"),
        ({"waits_for_acknowledgement": False}, "d> d< d> d< d> d<", "overwrite"),
        ({"waits_for_acknowledgement": False}, "d> d> d< d< d> d> d< d<", "overwrite"),
        ({"acknowledges_after_reading": False}, "d> d< d> d< d> d<", "overwrite"),
    ],
)
def test_each_rule_is_needed(broken: dict[str, bool], text: str, fault: str) -> None:
    found = {
        Explorer(program(candidate), 2, replace(Rules(), **broken)).explore()
        for candidate in (text, *PROGRAMS)
    }
    assert fault in found


def test_without_deadlines_a_dead_rank_holds_the_others() -> None:
    rules = Rules(deadlines=False)
    assert Explorer(program("d d"), 2, rules, may_die=True).explore() == "no way on"
