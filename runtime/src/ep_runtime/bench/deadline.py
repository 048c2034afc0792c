"""The bound in time of a run: a process that is stuck says where, and ends itself.

A thread can do that while the main thread waits in a collective, since those release the
interpreter's lock. For code that holds the lock, faulthandler's own C thread ends the process.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Callable

from ep_runtime.bench.progress import Trail

EXIT_TIMEOUT = 124  # what timeout(1) exits with

_GRACE_S = 5.0


class Deadline:
    """Ends this process ``seconds`` after ``start`` unless ``stop`` came first.

    ``on_expiry`` is called with the message before the process ends, to leave a trace of it.
    ``trail`` is told of each new ``phase``.
    """

    def __init__(
        self,
        seconds: float,
        who: str,
        on_expiry: Callable[[str], None],
        trail: Trail | None = None,
    ) -> None:
        self._seconds = seconds
        self._who = who
        self._on_expiry = on_expiry
        self._done = threading.Event()
        self.trail = trail or Trail(None)
        self._phase = "start"

    @property
    def phase(self) -> str:
        """What the process is at, for its last words."""
        return self._phase

    @phase.setter
    def phase(self, name: str) -> None:
        self._phase = name
        self.trail.say(name)

    def start(self) -> None:
        """Begin to count."""
        faulthandler.dump_traceback_later(self._seconds + _GRACE_S, exit=True)
        threading.Thread(target=self._watch, name="ep-bench-deadline", daemon=True).start()

    def stop(self) -> None:
        """Call it off."""
        self._done.set()
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        if self._done.wait(self._seconds):
            return
        message = (
            f"stopped after --timeout {self._seconds:g} s "
            f"in phase '{self.phase}'; a peer is missing or stuck, or the bound is too short."
        )
        print(f"ep-bench: {self._who}: {message}", file=sys.stderr, flush=True)
        try:
            self._on_expiry(message)
        finally:
            os._exit(EXIT_TIMEOUT)
