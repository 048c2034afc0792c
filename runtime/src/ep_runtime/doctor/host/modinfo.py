# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""What a kernel module file says of itself: the strings of its .modinfo section, its signature."""

from __future__ import annotations

import io
import struct
from typing import IO, TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Tuple

from . import archive

if TYPE_CHECKING:
    from .root import HostRoot

# Modules whose state decides something, by the names of their files.
NAMES = ("nvidia", "nvidia-peermem", "gdrdrv", "mlx5_core")
_SIGNATURE = b"~Module signature appended~\n"
_MAX_BYTES = 256 * 1024 * 1024
# xz takes seconds over the driver itself; a smaller module of the same build tells its version.
_MAX_XZ_BYTES = 2 * 1024 * 1024
_MAX_INDEX_BYTES = 16 * 1024 * 1024
_FIELDS = ("version", "license", "depends", "vermagic", "srcversion")


def installed(host: HostRoot, kernels: List[str]) -> Dict[str, Dict[str, Dict[str, Any]]]:
    """``{kernel: {module: description}}`` of the modules in ``NAMES`` that each kernel has.

    A description has ``path`` and, null where the file does not say, version, license, depends,
    vermagic, srcversion, and ``signed``.
    """
    found: Dict[str, Dict[str, Dict[str, Any]]] = {}
    for kernel in kernels:
        modules: Dict[str, Dict[str, Any]] = {}
        for name, path in _paths(host, kernel):
            # modules.dep names the one that modprobe takes first.
            modules.setdefault(name, {"path": path, **describe(host, path)})
        found[kernel] = modules
    return found


def _paths(host: HostRoot, kernel: str) -> Iterator[Tuple[str, str]]:
    base = f"/lib/modules/{kernel}"
    if not host.exists(base):
        base = f"/usr/lib/modules/{kernel}"
    index = host.data(base + "/modules.dep", _MAX_INDEX_BYTES) or b""
    for line in index.decode("utf-8", errors="replace").splitlines():
        path = line.partition(":")[0]
        stem = path.rsplit("/", 1)[-1].partition(".ko")[0]
        name = next((item for item in NAMES if item.replace("-", "_") == _plain(stem)), None)
        if name is not None:
            yield name.replace("-", "_"), path if path.startswith("/") else f"{base}/{path}"


def _plain(stem: str) -> str:
    # Debian names the driver's modules after their branch: nvidia-current-peermem.
    return stem.replace("-", "_").replace("nvidia_current", "nvidia")


def describe(host: HostRoot, path: str) -> Dict[str, Any]:
    """The fields of one module file; all null when it cannot be read."""
    description: Dict[str, Any] = dict.fromkeys((*_FIELDS, "signed"))
    try:
        with open(host.path(path), "rb") as stream:
            content = _plain_content(stream)
            if content is None:
                return description
            description.update(_section_fields(content))
            content.seek(-len(_SIGNATURE), io.SEEK_END)
            description["signed"] = content.read() == _SIGNATURE
    except PermissionError:
        host.unread.add(path)
    except (OSError, EOFError, ValueError, struct.error, archive.ArchiveError, *archive.DAMAGED):
        pass
    return description


def _plain_content(stream: IO[bytes]) -> Optional[IO[bytes]]:
    """The module uncompressed; None when that would take too long."""
    magic = stream.read(6)
    size = stream.seek(0, io.SEEK_END)
    stream.seek(0)
    if magic.startswith(b"\x7fELF"):
        return stream
    if magic.startswith(b"\xfd7zXZ") and size > _MAX_XZ_BYTES:
        return None
    with archive.decompressed(stream, magic) as content:
        return io.BytesIO(content.read(_MAX_BYTES))


def _section_fields(content: IO[bytes]) -> Dict[str, Optional[str]]:
    """Fields of .modinfo of a 64-bit little-endian ELF file, which is all that GPU hosts load."""
    header = content.read(64)
    if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
        return {}
    offset = struct.unpack_from("<Q", header, 40)[0]
    entry_bytes, count, names_index = struct.unpack_from("<HHH", header, 58)
    if entry_bytes != 64 or names_index >= count:
        return {}
    content.seek(offset)
    table = content.read(entry_bytes * count)
    sections = [struct.unpack_from("<IIQQQQ", table, i * entry_bytes) for i in range(count)]
    names = _read(content, sections[names_index])
    for section in sections:
        name = names[section[0] :].split(b"\0", 1)[0]
        if name == b".modinfo":
            return _fields(_read(content, section))
    return {}


def _read(content: IO[bytes], section: Tuple[int, ...]) -> bytes:
    content.seek(section[4])
    return content.read(min(section[5], 1024 * 1024))


def _fields(data: bytes) -> Dict[str, Optional[str]]:
    fields: Dict[str, Optional[str]] = {}
    for item in data.split(b"\0"):
        name, equals, value = item.decode("utf-8", errors="replace").partition("=")
        if equals and name in _FIELDS:
            fields.setdefault(name, value.strip())
    return fields
