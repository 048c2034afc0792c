# Copyright (c) the epfleet.expert_parallel authors
# SPDX-License-Identifier: Apache-2.0
"""Reading an initramfs image: cpio archives one after another, the last one compressed.

The generators put uncompressed archives (microcode, firmware, already compressed modules) before
the compressed one; the kernel unpacks all of them. Their own listing tools report success on
images they could not read, so the content is read here and an exit code is never the proof.
"""

from __future__ import annotations

import bz2
import fcntl
import gzip
import lzma
import os
import shutil
import subprocess
import zlib
from contextlib import contextmanager, suppress
from typing import IO, Any, Callable, Dict, Iterator, List, NamedTuple, Optional

_CPIO_MAGICS = (b"070701", b"070702")
_HEADER_BYTES = 110
_TRAILER = "TRAILER!!!"
_MAX_NAME_BYTES = 4096
_MAX_KEPT_BYTES = 1024 * 1024
_BLOCK_BYTES = 1024 * 1024
_F_SETPIPE_SZ = 1031  # named in Python's fcntl since 3.10
_S_IFMT, _S_IFREG, _S_IFLNK = 0o170000, 0o100000, 0o120000

_STDLIB: Dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": lambda stream: gzip.GzipFile(fileobj=stream),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"\x5d\x00\x00": lzma.LZMAFile,
}
_TOOLS = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x02\x21\x4c\x18": "lz4",
    b"\x04\x22\x4d\x18": "lz4",
    b"\x89LZO": "lzop",
}


DAMAGED = (EOFError, lzma.LZMAError, zlib.error)


class ArchiveError(Exception):
    """An image that cannot be read; the message says why in words for the operator."""


class Image(NamedTuple):
    """Names of all members without a leading slash; content of the files and target of the links
    asked for.
    """

    names: List[str]
    kept: Dict[str, bytes]
    links: Dict[str, str]


def read_image(path: str, keep: Callable[[str], bool]) -> Image:
    """Read the image at ``path``, keeping the files and links whose names ``keep`` selects.

    Raises ArchiveError when the image, or a tool to decompress it, is missing or damaged.
    """
    image = Image([], {}, {})
    try:
        with open(path, "rb") as stream:
            if not _read_segments(stream, image, keep):
                raise ArchiveError(f"{path} holds no cpio archive")
    except (OSError, *DAMAGED) as error:
        raise ArchiveError(f"{path} cannot be read: {error}") from error
    return image


def _read_segments(stream: IO[bytes], image: Image, keep: Callable[[str], bool]) -> bool:
    found = False
    while True:
        start = _skip_padding(stream)
        magic = stream.read(6)
        stream.seek(start)
        if not magic:
            return found
        if magic in _CPIO_MAGICS:
            _read_cpio(stream, image, keep)
            found = True
            continue
        # A compressed archive is the last thing in an image.
        with decompressed(stream, magic) as content:
            _read_cpio(content, image, keep)
        return True


def _skip_padding(stream: IO[bytes]) -> int:
    """Move past NUL bytes and return the position of what follows (or of the end)."""
    while True:
        start = stream.tell()
        block = stream.read(_BLOCK_BYTES)
        rest = block.lstrip(b"\0")
        if rest or not block:
            position = start + len(block) - len(rest)
            stream.seek(position)
            return position


@contextmanager
def decompressed(stream: IO[bytes], magic: bytes) -> Iterator[IO[bytes]]:
    """What ``stream`` holds, uncompressed as its first bytes ``magic`` ask.

    Raises ArchiveError for an unknown compression or one whose program the host lacks; reading
    raises one of ``DAMAGED``.
    """
    for prefix, opener in _STDLIB.items():
        if magic.startswith(prefix):
            yield opener(stream)
            return
    tool = next((name for prefix, name in _TOOLS.items() if magic.startswith(prefix)), None)
    if tool is None:
        raise ArchiveError(f"neither cpio nor a known compression (first bytes {magic.hex()})")
    program = shutil.which(tool, path="/usr/bin:/bin:/usr/local/bin:/usr/sbin:/sbin")
    if program is None:
        raise ArchiveError(f"compressed with {tool}, and the host has no {tool} program to read it")
    # The child inherits the descriptor's offset, which buffered reading has moved ahead.
    os.lseek(stream.fileno(), stream.tell(), os.SEEK_SET)
    with subprocess.Popen(
        [program, "-dc"], stdin=stream, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            if process.stdout is not None:
                _widen(process.stdout)
                yield process.stdout
        finally:
            process.kill()


def _widen(pipe: IO[bytes]) -> None:
    """Let ``pipe`` hold a megabyte: images have hundreds, and each filling changes the process."""
    # The kernel may refuse an ordinary user; slower is all that follows.
    with suppress(OSError):
        fcntl.fcntl(pipe.fileno(), _F_SETPIPE_SZ, _BLOCK_BYTES)


def _read_cpio(stream: IO[bytes], image: Image, keep: Callable[[str], bool]) -> None:
    while True:
        header = _exactly(stream, _HEADER_BYTES)
        if header[:6] not in _CPIO_MAGICS:
            raise ArchiveError("damaged cpio archive: a header is missing where one must be")
        try:
            fields = [int(header[6 + 8 * i : 14 + 8 * i], 16) for i in range(13)]
        except ValueError as error:
            raise ArchiveError("damaged cpio archive: a header is not hexadecimal") from error
        mode, size, name_bytes = fields[1], fields[6], fields[11]
        if not 0 < name_bytes <= _MAX_NAME_BYTES:
            raise ArchiveError("damaged cpio archive: a name is too long")
        raw = _exactly(stream, name_bytes + _padding(_HEADER_BYTES + name_bytes))[:name_bytes]
        name = raw.rstrip(b"\0").decode("utf-8", errors="replace")
        if name == _TRAILER:
            return
        name = name[2:] if name.startswith("./") else name.lstrip("/")
        image.names.append(name)
        kind = mode & _S_IFMT
        if kind in (_S_IFREG, _S_IFLNK) and size <= _MAX_KEPT_BYTES and keep(name):
            content = _exactly(stream, size)
            if kind == _S_IFREG:
                image.kept[name] = content
            else:
                image.links[name] = content.decode("utf-8", errors="replace")
        else:
            _skip(stream, size)
        _skip(stream, _padding(size))


def _padding(size: int) -> int:
    return -size % 4


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = b""
    while len(data) < size:
        block = stream.read(size - len(data))
        if not block:
            raise ArchiveError("damaged cpio archive: it ends in the middle of a member")
        data += block
    return data


def _skip(stream: IO[bytes], size: int) -> None:
    while size > 0:
        size -= len(_exactly(stream, min(size, _BLOCK_BYTES)))


def module_names(names: List[str], module: str) -> Optional[str]:
    """The member that is kernel module ``module`` (``nvidia.ko``, ``.ko.xz`` ...), or None."""
    wanted = module.replace("-", "_") + ".ko"
    for name in names:
        base = name.rsplit("/", 1)[-1].replace("-", "_")
        if base == wanted or base.startswith(wanted + "."):
            return name
    return None
