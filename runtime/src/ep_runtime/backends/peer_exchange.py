"""Hands each rank's memory descriptor to the other ranks of its host.

File descriptors cross processes only over a Unix socket. Each rank serves its own from a
directory that only its user may enter, to processes of that user as the kernel names them, and a
peer must show the token that went through the process group.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import struct
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_TOKEN_BYTES = 16
_TIMEOUT_S = 60.0
_CREDENTIALS = struct.Struct("iII")  # struct ucred: process, user, group


@dataclass(frozen=True)
class Door:
    """Where a rank serves its descriptor."""

    path: str
    token: bytes


def host_identity() -> str:
    """Name this running host: the same for all its processes, and for no others."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{socket.gethostname()}/{boot}"


def _receive_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the peer closed the connection")
        data += part
    return data


def _require_own_user(connection: socket.socket) -> None:
    """Raise PermissionError unless the process at the other end is this process's user's."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(credentials)
    if user != os.geteuid():
        raise PermissionError(f"the process at the other end belongs to user {user}")


def _serve(listener: socket.socket, token: bytes, descriptor: int, stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            connection, _ = listener.accept()
        except (TimeoutError, socket.timeout):
            continue
        except OSError:
            return  # closed
        with connection:
            connection.settimeout(_TIMEOUT_S)
            try:
                _require_own_user(connection)
                given = _receive_exactly(connection, _TOKEN_BYTES)
                if secrets.compare_digest(given, token):
                    socket.send_fds(connection, [b"ok"], [descriptor])
            except OSError:
                continue  # this visitor went away; the others still come


@contextmanager
def serving(descriptor: int) -> Iterator[Door]:
    """Serve ``descriptor`` until the block ends. Closes the descriptor."""
    token = secrets.token_bytes(_TOKEN_BYTES)
    directory = tempfile.mkdtemp(prefix="ep-runtime-")  # mode 0700
    path = str(Path(directory) / "memory")
    stop = threading.Event()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        listener.listen(64)
        listener.settimeout(0.2)
        server = threading.Thread(
            target=_serve, args=(listener, token, descriptor, stop), daemon=True
        )
        server.start()
        try:
            yield Door(path, token)
        finally:
            stop.set()
            server.join()
    finally:
        listener.close()
        os.close(descriptor)
        shutil.rmtree(directory, ignore_errors=True)


def fetch(door: Door, use: Callable[[int], None]) -> None:
    """Get the descriptor behind ``door`` and ``use`` it; it is closed afterwards.

    Raises OSError when the peer is gone or refuses.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_TIMEOUT_S)
        connection.connect(door.path)
        _require_own_user(connection)
        connection.sendall(door.token)
        _, descriptors, _, _ = socket.recv_fds(connection, struct.calcsize("2s"), 1)
    if len(descriptors) != 1:
        raise ConnectionError("the peer refused the token")
    try:
        use(descriptors[0])
    finally:
        os.close(descriptors[0])
