"""Who gets a rank's memory descriptor: processes of its user with the token, and nobody else."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from ep_runtime.backends import peer_exchange
from ep_runtime.backends.peer_exchange import Door, fetch, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOBODY = 65534
SECRET = b"what lies in the memory"


@pytest.fixture
def door() -> Iterator[Door]:
    ours, theirs = os.pipe()
    os.write(theirs, SECRET)
    os.close(theirs)
    with serving(ours) as door:
        yield door


def read(door: Door) -> bytes:
    got = []
    fetch(door, lambda descriptor: got.append(os.read(descriptor, 100)))
    return got[0]


def as_nobody(do: Callable[[], object]) -> str:
    """What ``do`` raised in a process of another user, or "nothing"."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            do()
            os.write(theirs, b"nothing")
        except BaseException as error:
            os.write(theirs, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(theirs)
    os.waitpid(child, 0)
    with os.fdopen(ours, "rb") as answer:
        return answer.read().decode()


def test_a_peer_with_the_token_gets_it(door: Door) -> None:
    assert read(door) == SECRET


def test_another_token_does_not(door: Door) -> None:
    with pytest.raises(ConnectionError, match="refused"):
        read(Door(door.path, bytes(16)))
    assert read(door) == SECRET  # and it is served on


def test_only_its_user_may_enter(door: Door) -> None:
    assert Path(door.path).parent.stat().st_mode & 0o777 == 0o700
    assert Path(door.path).parent.stat().st_uid == os.geteuid()


def test_nothing_is_left_behind() -> None:
    ours, theirs = os.pipe()
    with serving(ours) as door:
        pass
    os.close(theirs)
    assert not Path(door.path).parent.exists()


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


@needs_root
def test_another_user_can_not_reach_it(door: Door) -> None:
    assert as_nobody(lambda: read(door)).startswith("PermissionError")


@needs_root
def test_another_user_is_refused_even_where_the_directory_lets_it_in(door: Door) -> None:
    """With the right token, and asking by hand: the kernel tells whose process it is."""
    Path(door.path).parent.chmod(0o755)
    Path(door.path).chmod(0o777)

    def ask() -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(door.path)
            connection.sendall(door.token)
            _, descriptors, _, _ = socket.recv_fds(connection, 2, 1)
        if len(descriptors) != 1:
            raise ConnectionError("got no descriptor")

    refusals = ("ConnectionError", "BrokenPipeError", "ConnectionResetError")
    assert as_nobody(ask).startswith(refusals)
    assert read(door) == SECRET


@needs_root
def test_a_door_of_another_user_is_not_entered(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a stranger serves would be mapped as a peer's memory."""
    monkeypatch.setattr(peer_exchange.os, "geteuid", lambda: NOBODY)
    with pytest.raises(PermissionError, match="belongs to user 0"):
        read(door)
