"""How far a run is: a bar for people, a line in a file for whoever watches from outside."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Seldom enough to be in no figure, often enough for a person.
_EVERY_S = 2.0


class Trail:
    """One line about where the run is, kept in ``path``; nowhere for None."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._written = float("-inf")

    def say(self, text: str) -> None:
        """Leave ``text``. That it cannot be written is no reason to end a run."""
        if self._path is None:
            return
        self._written = time.monotonic()
        fresh = self._path.with_suffix(".new")
        with suppress(OSError):
            fresh.write_text(text + "\n", "utf-8")
            fresh.replace(self._path)

    def say_sometimes(self, text: str) -> None:
        """``say``, unless something was said a moment ago."""
        if time.monotonic() - self._written >= _EVERY_S:
            self.say(text)


@contextmanager
def bar(title: str, total: int, *, shown: bool, trail: Trail) -> Iterator[Callable[[int], None]]:
    """Give a function that takes the number of newly finished rounds out of ``total``.

    It draws on stderr when that is a terminal and ``shown`` is true, and tells ``trail``.
    """
    done = 0

    def note(rounds: int) -> None:
        nonlocal done
        done += rounds
        trail.say_sometimes(f"{title}: {done} of {max(done, total)} rounds")

    if not (shown and sys.stderr.isatty()):
        yield note
        return
    from rich.console import Console  # noqa: PLC0415 - only needed on a terminal
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True), transient=True) as drawn:
        task = drawn.add_task(title, total=total)

        def draw(rounds: int) -> None:
            note(rounds)
            drawn.advance(task, rounds)

        yield draw
