"""Events that order streams, in the two classes that callers of DeepEP know."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from types import TracebackType


class EventHandle:
    """A point on the current CUDA stream. Without a GPU all work is done in order: no event."""

    def __init__(self) -> None:
        self._event: torch.cuda.Event | None = None
        if torch.cuda.is_available():
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream())

    def current_stream_wait(self) -> None:
        """Let the current stream wait for the event; the host does not wait."""
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)


class EventOverlap:
    """What an operation returns to be waited for, also as a context manager.

    ``event`` is None when there is nothing to wait for. ``extra_tensors`` are kept alive with
    this object: work on another stream may still use them. ``with event: ...`` waits at the end.
    """

    def __init__(
        self,
        event: EventHandle | None = None,
        extra_tensors: tuple[torch.Tensor, ...] | None = None,
    ) -> None:
        self.event = event
        self.extra_tensors = extra_tensors

    def current_stream_wait(self) -> None:
        """Let the current stream wait for the event. AssertionError when there is none."""
        assert self.event is not None, (
            "event is None: the operation was not started with async_finish=True."
        )
        self.event.current_stream_wait()

    def __enter__(self) -> EventOverlap:
        """Start work that overlaps with the operation."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for the event, if there is one."""
        if self.event is not None:
            self.event.current_stream_wait()
