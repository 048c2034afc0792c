"""A progress bar for people; silence for logs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar(title: str, total: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """Give a function that takes the number of newly finished rounds out of ``total``.

    It draws on stderr, and only when that is a terminal and ``shown`` is true.
    """
    if not (shown and sys.stderr.isatty()):
        yield lambda _: None
        return
    from rich.console import Console  # noqa: PLC0415 - only needed on a terminal
    from rich.progress import Progress  # noqa: PLC0415

    with Progress(console=Console(stderr=True), transient=True) as drawn:
        task = drawn.add_task(title, total=total)
        yield lambda rounds: drawn.advance(task, rounds)
