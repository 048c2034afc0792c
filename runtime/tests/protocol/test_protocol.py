"""The protocol's model keeps its invariants, and breaking any of its rules is found out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from explorer import (
    CLEAN,
    COMBINE,
    CREATE,
    DISPATCH,
    RECEIVE,
    SEND,
    STATES,
    Explorer,
    Launch,
    Rules,
)

BOTH = SEND | RECEIVE


def program(text: str) -> list[Launch]:
    """``d`` and ``c``: dispatch and combine in one launch; ``d>`` sends only, ``d<`` receives.

    ``clean`` and ``create`` are themselves; epochs begin again after a creation, and after a clean
    nothing is left to receive.
    """
    counts = dict.fromkeys(
        ((kind, phase) for kind in (DISPATCH, COMBINE, CLEAN) for phase in (SEND, RECEIVE)), 0
    )
    launches = []
    for word in text.split():
        if word == "create":
            counts = dict.fromkeys(counts, 0)
            launches.append(Launch(CREATE, 1, 0))
            continue
        if word == "clean":
            counts[CLEAN, SEND] += 1
            for kind in (DISPATCH, COMBINE):
                counts[kind, RECEIVE] = counts[kind, SEND]
            launches.append(Launch(CLEAN, counts[CLEAN, SEND], 0))
            continue
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


# Cleans after all was received, and with one or two results that never will be; one after another.
CLEANS = [
    "d d clean d d",
    "d> d> clean d> d< d> d<",
    "d> c> clean c> d> d< c<",
    "d> clean clean d d d",
    "d clean d> clean d> d> d< d<",
]
# A buffer made again: in order, in the middle of what was sent, and before a clean.
CREATIONS = [
    "d c create d c d",
    "d> create d> d< d> d<",
    "d> c> create c c c",
    "d create d clean d",
]


@pytest.mark.parametrize("text", [*PROGRAMS, *CLEANS, *CREATIONS])
def test_two_ranks(text: str) -> None:
    explorer = Explorer(program(text), 2, Rules())
    assert explorer.explore() is None
    assert explorer.states > 100


@pytest.mark.parametrize("text", ["d d", "d> d<", "d> clean"])
def test_three_ranks(text: str) -> None:
    assert Explorer(program(text), 3, Rules()).explore() is None


@pytest.mark.parametrize("text", [*PROGRAMS[:5], *CLEANS])
def test_a_rank_that_dies_anywhere_holds_nobody(text: str) -> None:
    assert Explorer(program(text), 2, Rules(), may_die=True).explore() is None


@pytest.mark.parametrize("text", CREATIONS)
def test_a_rank_that_died_joins_again_at_a_creation(text: str) -> None:
    explorer = Explorer(program(text), 2, Rules(), may_die=True)
    assert explorer.explore() is None
    assert explorer.returned > 0


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
        ({"clean_settles": False}, "d> d> clean d> d< d> d<", "no way on"),
        ({"clean_meets_after_zeroing": False}, "d d clean d d", "no way on"),
        ({"barrier_may_be_one_ahead": False}, "d> clean clean d d d", "no way on"),
        ({"creation_waits_for_all": False}, "d create d clean d", "no way on"),
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


@pytest.mark.parametrize("state", STATES)
def test_the_kernels_name_the_state(state: str) -> None:
    kernels = Path(__file__).parents[2] / "csrc" / "cuda"
    sources = [*kernels.glob("*.cu"), *kernels.glob("*.cuh"), *kernels.glob("device/*.cuh")]
    assert any(f"State: {state}" in source.read_text() for source in sources)
