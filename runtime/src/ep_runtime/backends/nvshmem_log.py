"""What NVSHMEM says of itself: which NIC handler runs, and why it did not start.

No interface tells these; its log does. Its plugins write theirs to the standard streams, at a level
that also fills them with every step of the bootstrap, so the streams are taken while NVSHMEM talks.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ep_runtime.doctor import logs

if TYPE_CHECKING:
    from collections.abc import Iterator

# The messages in which NVSHMEM names the handler, in the order in which it tries them.
_HANDLERS = {"EPL101": "gpu", "EPL102": "cpu-gdrcopy", "EPL103": "cpu-host-memory"}
# They follow from another error, or stand for none where all peers are near.
_CONSEQUENCES = ("EPL105", "EPL106")

# Lines of NVSHMEM and its plugins; others belong to the program and are passed on.
_NVSHMEMS_OWN = re.compile(r"nvshmem|NVSHMEM|GDRCopy|^\s*$|nranks \d+|- (ENTER|DONE)")


class StartLog:
    """All that NVSHMEM has said in this process so far."""

    def __init__(self) -> None:
        self.text = ""

    @property
    def nic_handler(self) -> str | None:
        """One of "gpu", "cpu-gdrcopy", "cpu-host-memory"; None: the log names none."""
        found = {finding["id"] for finding in self._findings()}
        return next((name for message, name in _HANDLERS.items() if message in found), None)

    @property
    def devices(self) -> list[str]:
        """RDMA devices that the log names, such as ["mlx5_0"]."""
        return sorted(set(re.findall(r"\bmlx5_\w+", self.text)))

    def explain(self) -> str:
        """Say what went wrong and what to do, by the first line that tells; "" if none does."""
        errors = [finding for finding in self._findings() if finding["severity"] == "error"]
        if not errors:
            return ""

        def order(finding: dict[str, Any]) -> tuple[bool, int]:
            line = int(finding["evidence"][0]["where"].rpartition(":")[2])
            return finding["id"] in _CONSEQUENCES, line

        first = min(errors, key=order)
        return (
            f"{first['title']}. {first['fix']} (NVSHMEM: {first['evidence'][0]['seen'][:200]}; "
            f"docs/diagnose/logs.md, {first['id']})"
        )

    def _findings(self) -> list[dict[str, Any]]:
        return logs.explain(self.text.splitlines(), "log")

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Keep what NVSHMEM says inside the block.

        The user sees it too where NVSHMEM_DEBUG is set; what others print meanwhile comes after.
        """
        users = bool(os.environ.get("NVSHMEM_DEBUG"))
        if not users:
            os.environ["NVSHMEM_DEBUG"] = "INFO"
        try:
            with _taken_streams() as said:
                yield
        finally:
            if not users:
                del os.environ["NVSHMEM_DEBUG"]
            for number, text in enumerate(said, start=1):
                self.text += text
                for line in text.splitlines(keepends=True):
                    if users or not _NVSHMEMS_OWN.search(line):
                        os.write(number, line.encode(errors="replace"))


@contextmanager
def _taken_streams() -> Iterator[list[str]]:
    """Send the file descriptors 1 and 2 elsewhere; the list holds what was written in the end."""
    said: list[str] = []
    _flush()
    kept = [os.dup(number) for number in (1, 2)]
    sinks = [tempfile.TemporaryFile() for _ in kept]  # noqa: SIM115 - closed below
    try:
        for number, sink in enumerate(sinks, start=1):
            os.dup2(sink.fileno(), number)
        yield said
    finally:
        _flush()
        for number, (original, sink) in enumerate(zip(kept, sinks), start=1):
            os.dup2(original, number)
            os.close(original)
            with sink:
                sink.seek(0)
                said.append(sink.read().decode(errors="replace"))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    ctypes.CDLL(None).fflush(None)
