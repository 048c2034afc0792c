"""How an operation's two phases meet streams, events and hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ep_runtime.backends.base import RECEIVE, SEND, SEND_AND_RECEIVE, Operation
from ep_runtime.events import EventHandle, EventOverlap

if TYPE_CHECKING:
    from collections.abc import Callable

# Symmetric memory has two slots, so a third result would overwrite the first.
MAX_UNRECEIVED = 2


def current_stream(device: torch.device) -> int:
    """Handle of the current stream; ``torch.cuda.current_stream`` takes ten times as long."""
    return int(torch._C._cuda_getCurrentRawStream(device.index))


def _stream_of(handle: int, device: torch.device) -> torch.cuda.Stream:
    if handle == 0:  # which the constructor takes for "none given"
        return torch.cuda.default_stream(device)
    return torch.cuda.ExternalStream(handle, device)  # type: ignore[no-untyped-call]


class Launcher:
    """Runs the operations of one buffer and knows which of them were not received yet."""

    def __init__(self) -> None:
        self._unreceived: list[_ReceiveHook] = []
        self._comm_stream: torch.cuda.Stream | None = None
        # Where the last operation without a hook ran: the next one comes after it.
        self._tail: int | None = None

    def comm_stream(self, device: torch.device) -> torch.cuda.Stream:
        """Give the high-priority stream of operations without a hook, made at the first call."""
        if self._comm_stream is None:
            self._comm_stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        return self._comm_stream

    def run(
        self,
        operation: Operation,
        name: str,
        device: torch.device,
        tensors: Callable[[], tuple[torch.Tensor, ...]],
        *,
        async_finish: bool,
        return_recv_hook: bool,
    ) -> tuple[EventOverlap, Callable[[], None] | None]:
        """Start ``operation``, which reads and writes ``tensors()`` on ``device``.

        With a hook the send runs on the current stream. Otherwise all of it runs after what the
        current stream holds and after earlier operations without a hook; the current stream waits
        for it unless ``async_finish``. On the CPU it is done on return.
        """
        if len(self._unreceived) >= MAX_UNRECEIVED:
            raise RuntimeError(
                f"{name}: {len(self._unreceived)} operations were sent whose receive hooks were "
                f"not called, and at most {MAX_UNRECEIVED} may be: call the hooks first."
            )
        if return_recv_hook:
            operation.run(SEND)
            return EventOverlap(), self.hook(operation, name, device)
        if device.type != "cuda":
            operation.run(SEND_AND_RECEIVE)
            return EventOverlap(EventHandle(), tensors()) if async_finish else EventOverlap(), None
        if not async_finish and self._may_use_current_stream(device):
            operation.run(SEND_AND_RECEIVE)
            return EventOverlap(), None
        return self._run_on_comm_stream(operation, tensors, device, async_finish), None

    def direct_stream(self, device: torch.device, return_recv_hook: bool) -> int | None:
        """Give the current stream where an operation without ``async_finish`` simply goes there.

        None where ``run`` has something to order or to refuse. While a graph is captured, only
        operations with a hook may.
        """
        if len(self._unreceived) >= MAX_UNRECEIVED:
            return None
        current = current_stream(device)
        return current if return_recv_hook or current == self._tail else None

    def hook(self, operation: Operation, name: str, device: torch.device) -> _ReceiveHook:
        """Give what receives ``operation``, which was sent on the current stream."""
        hook = _ReceiveHook(self._unreceived, operation, name, device)
        self._unreceived.append(hook)
        return hook

    def _may_use_current_stream(self, device: torch.device) -> bool:
        """Tell whether it holds the last operation already, so that nothing needs ordering.

        A second stream and its events cost several times what a launch does. While a graph is
        captured that does not matter, and what ran outside can't be waited for.
        """
        if torch._C._cuda_isCurrentStreamCapturing():
            return False
        current = current_stream(device)
        if self._tail is None:
            self._tail = current
        return self._tail == current

    def forget(self) -> None:
        """Drop operations that were not received; their hooks become errors."""
        for hook in self._unreceived:
            hook.cancel()
        self._unreceived.clear()

    def _run_on_comm_stream(
        self,
        operation: Operation,
        tensors: Callable[[], tuple[torch.Tensor, ...]],
        device: torch.device,
        async_finish: bool,
    ) -> EventOverlap:
        comm = self.comm_stream(device)
        compute = torch.cuda.current_stream(device)
        capturing = torch.cuda.is_current_stream_capturing()
        comm.wait_stream(compute)
        tail = self._tail
        if not capturing and tail is not None and tail != compute.cuda_stream:
            comm.wait_stream(_stream_of(tail, device))
        with torch.cuda.stream(comm):
            operation.run(SEND_AND_RECEIVE)
            event = EventHandle()
        if not capturing:
            self._tail = comm.cuda_stream if async_finish else compute.cuda_stream
        if not async_finish:
            event.current_stream_wait()
            return EventOverlap()
        touched = tensors()
        if not capturing:
            # The caller may drop the event and the tensors before the communication is done.
            for tensor in touched:
                tensor.record_stream(comm)
        return EventOverlap(event, touched)


class _ReceiveHook:
    """Receives one operation, on the stream that sent it; to be called exactly once."""

    def __init__(
        self,
        unreceived: list[_ReceiveHook],
        operation: Operation,
        name: str,
        device: torch.device,
    ) -> None:
        self._unreceived = unreceived
        self._operation: Operation | None = operation
        self._name = name
        self._device = device
        self._sent_on = current_stream(device) if device.type == "cuda" else None

    def __call__(self) -> None:
        operation, self._operation = self._operation, None
        if operation is None:
            raise RuntimeError(
                f"the receive hook of this {self._name} was called before, or the buffer was "
                "cleaned since."
            )
        self._unreceived.remove(self)
        if self._sent_on is None or self._sent_on == current_stream(self._device):
            operation.run(RECEIVE)
            return
        # Called on another stream: its earlier work comes first, its later work sees the result.
        stream = _stream_of(self._sent_on, self._device)
        current = torch.cuda.current_stream(self._device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            operation.run(RECEIVE)
        current.wait_stream(stream)

    def cancel(self) -> None:
        """Make a later call an error."""
        self._operation = None
