"""Kernel module files that modinfo reads: an ELF header, .modinfo, and its name table."""

from __future__ import annotations

import struct

_SIGNATURE = b"~Module signature appended~\n"


def module(signed: bool = False, **fields: str) -> bytes:
    """A module whose .modinfo holds ``fields``."""
    info = b"".join(f"{name}={value}".encode() + b"\0" for name, value in fields.items())
    names = b"\0.modinfo\0.shstrtab\0"
    table = 64 + len(info) + len(names)
    header = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    header += struct.pack("<HHIQQQIHHHHHH", 1, 62, 1, 0, 0, table, 0, 64, 0, 0, 64, 3, 2)
    sections = bytes(64)
    sections += _section(1, 1, 64, len(info))
    sections += _section(10, 3, 64 + len(info), len(names))
    tail = b"\0" * 256 + struct.pack(">BBBBBxxxI", 0, 0, 2, 0, 0, 256) + _SIGNATURE
    return header + info + names + sections + (tail if signed else b"")


def _section(name: int, kind: int, offset: int, size: int) -> bytes:
    return struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, offset, size, 0, 0, 1, 0)
