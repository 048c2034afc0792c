# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""The IPv4 addresses of a host, the one its ranks meet at, and whether a port is free."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
from typing import Iterable

LOOPBACK = "127.0.0.1"

_SIOCGIFADDR = 0x8915
_LISTEN = "0A"


class NetworkError(ValueError):
    """A host has no address of the wanted kind; the text says what it has."""


def interface_addresses() -> dict[str, str]:
    """Return the first IPv4 address of every interface that has one."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _index, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(asker.fileno(), _SIOCGIFADDR, request)
                found[name] = socket.inet_ntoa(answer[20:24])
    return found


def default_interface(table: str) -> str | None:
    """Return the interface of the default route with the least metric.

    ``table`` is the text of /proc/net/route.
    """
    best: tuple[int, str] | None = None
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 8 or fields[1] != "00000000" or fields[7] != "00000000":
            continue
        candidate = (int(fields[6]), fields[0])
        if best is None or candidate < best:
            best = candidate
    return None if best is None else best[1]


def choose_interface(wanted: str, addresses: dict[str, str], table: str) -> str:
    """Return the interface to meet at: the wanted one, else the default route's, else the only one.

    Raises ``NetworkError`` naming ``ep_benchmark_interface`` and what there is to choose from.
    """
    there = ", ".join(f"{name} ({address})" for name, address in sorted(addresses.items()))
    if wanted:
        if wanted not in addresses:
            raise NetworkError(
                f"ep_benchmark_interface is {wanted}, which has no IPv4 address here; "
                f"the interfaces with one are {there or 'none'}."
            )
        return wanted
    default = default_interface(table)
    if default in addresses:
        return str(default)
    others = [name for name, address in addresses.items() if not address.startswith("127.")]
    if len(others) != 1:
        raise NetworkError(
            "there is no default route to choose an interface by: set ep_benchmark_interface "
            f"to one of {there or 'none'}."
        )
    return others[0]


def port_in_use(port: int, tables: Iterable[str]) -> bool:
    """Return whether something listens on TCP ``port`` of any address.

    ``tables`` are the texts of /proc/net/tcp and /proc/net/tcp6.
    """
    for table in tables:
        for line in table.splitlines()[1:]:
            fields = line.split()
            listening = len(fields) > 3 and fields[3] == _LISTEN
            if listening and int(fields[1].rpartition(":")[2], 16) == port:
                return True
    return False


def answers(address: str, port: int, timeout_s: float) -> bool:
    """Return whether something accepts TCP connections there, within ``timeout_s`` seconds."""
    try:
        with socket.create_connection((address, port), timeout=timeout_s):
            return True
    except OSError:
        return False


def read_table(path: str) -> str:
    """Return a file of /proc/net, empty when the kernel has no such table."""
    try:
        with open(path, encoding="ascii") as stream:
            return stream.read()
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EACCES):
            return ""
        raise


def listeners() -> list[str]:
    """Return the TCP tables of this host."""
    return [read_table(os.path.join("/proc/net", name)) for name in ("tcp", "tcp6")]
