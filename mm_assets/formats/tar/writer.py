"""Deterministic writer of plain USTAR tars: the same members give the same bytes."""

from __future__ import annotations

import os
import tarfile
import zlib
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Any, NamedTuple

from mm_assets.formats.tar.index import BLOCK

MAX_NAME = 100  # bytes; longer names need tar extensions, which wids and DALI do not read
MAX_MEMBER = 8 << 30  # bytes; eleven octal digits
END_BLOCKS = 2 * BLOCK

_MODE_UID_GID = b"0000644\x000000000\x000000000\x00"
_MTIME = b"00000000000\x00"
_REST = (b"0" + bytes(100) + b"ustar\x0000").ljust(BLOCK - 156, b"\x00")  # type, link name, magic, version
# The checksum field itself counts as spaces.
_CONSTANT_SUM = sum(_MODE_UID_GID) + sum(_MTIME) + sum(_REST) + 8 * ord(" ")
_PADDING = bytes(BLOCK)
_COPIED_AT_ONCE = 1 << 20  # bytes
_MAX_BUFFERS = os.sysconf("SC_IOV_MAX")

# Anything with a contiguous buffer (bytes, memoryview, pa.Buffer; Python 3.11 has no type for it), or a
# `FileRange`.
Payload = Any


class FileRange(NamedTuple):
    """A payload in an open file; offset and size in bytes. The kernel copies it, so it uses no memory."""

    descriptor: int
    offset: int
    size: int


def add_member(file: IO[bytes], name: str, size: int, payload: IO[bytes]) -> None:
    """Append a member of any name and size, in PAX format, without end blocks.

    Raises:
        EOFError: the payload is shorter.
    """
    info = tarfile.TarInfo(name)
    info.size = size
    file.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict"))
    left = size
    while left > 0:
        block = payload.read(min(left, _COPIED_AT_ONCE))
        if not block:
            raise EOFError(f"it ends {left} bytes early")
        file.write(block)
        left -= len(block)
    file.write(_PADDING[: -size % BLOCK])


class TarWriter:
    """Writer of groups of members to a tar at ``path``, which is created or truncated.

    Times and owners are 0, modes 0644, names ASCII. As a context manager it writes the end blocks only if the
    block ends without an exception, so an abandoned tar reads as damaged. Removing or renaming the file is up
    to the caller. ``groups`` and ``bytes`` count what is in the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.groups = 0
        self.bytes = 0
        self._starts: list[int] = []
        self._end = 0  # of the last group; `bytes` counts the end blocks as well
        self._failed = False
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)

    def write_group(self, members: Sequence[tuple[str, Payload]]) -> None:
        """Append one group of members, such as a sample.

        Args:
            members: (name, payload) pairs, written in this order. Payloads go to the kernel without a copy.

        Raises:
            ValueError: There are no members, a name occurs twice, a name is not 1 to 100 ASCII bytes without
                NUL, or a payload has 8 GiB or more. Nothing has been written then.
            OSError: The disk refuses; the tar can only be abandoned.
        """
        if self._fd < 0 or self._failed:
            raise ValueError("the tar is closed, or a write to it failed")
        if not members or len({name for name, _ in members}) != len(members):
            raise ValueError(f"a sample has members of different names, not {[name for name, _ in members]}")
        buffers: list[bytes | memoryview] = []
        padding = b""
        total = 0
        for name, payload in members:
            view = payload if isinstance(payload, FileRange) else memoryview(payload).cast("B")
            size = view.size if isinstance(view, FileRange) else len(view)
            header = _header(name, size)
            buffers.append(padding + header if padding else header)
            if isinstance(view, FileRange):
                self._write(buffers)
                self._copy(view)
                buffers = []
            elif size:
                buffers.append(view)
            padding = _PADDING[: -size % BLOCK]
            total += BLOCK + size + len(padding)
        if padding:
            buffers.append(padding)
        self._write(buffers)
        self._starts.append(self._end)
        self._end += total
        self.bytes = self._end
        self.groups += 1

    @property
    def offsets(self) -> list[int]:
        """Byte offsets of the groups' first headers, and of the end blocks."""
        return [*self._starts, self._end]

    def close(self) -> None:
        """Write the end blocks and close the file; a second call does nothing.

        Raises:
            ValueError: A write has failed before.
        """
        if self._fd < 0:
            return
        if self._failed:
            self.abort()
            raise ValueError("a write failed: the tar is not complete")
        try:
            self._write([bytes(END_BLOCKS)])
            self.bytes += END_BLOCKS
        finally:
            self.abort()

    def abort(self) -> None:
        """Close the file as it is, without end blocks."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> TarWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _copy(self, source: FileRange) -> None:
        at, end = source.offset, source.offset + source.size
        try:
            while at < end:
                if not (copied := os.sendfile(self._fd, source.descriptor, at, end - at)):
                    raise OSError(f"the file ends {end - at} bytes before the end of a payload")
                at += copied
        except BaseException:
            self._failed = True
            raise

    def _write(self, buffers: list[bytes | memoryview]) -> None:
        at = 0
        try:
            while at < len(buffers):
                written = os.writev(self._fd, buffers[at : at + _MAX_BUFFERS])
                while at < len(buffers) and written >= len(buffers[at]):
                    written -= len(buffers[at])
                    at += 1
                if written:
                    buffers[at] = memoryview(buffers[at])[written:]
        except BaseException:
            self._failed = True
            raise


def _header(name: str, size: int) -> bytes:
    raw = name.encode("ascii", "replace")
    if not name.isascii() or not 0 < len(raw) <= MAX_NAME or b"\0" in raw:
        raise ValueError(f"member name {name!r} is not 1 to {MAX_NAME} ASCII bytes without NUL")
    if size >= MAX_MEMBER:
        raise ValueError(f"member {name!r} has {size} bytes; a member is smaller than {MAX_MEMBER}")
    digits = b"%011o\x00" % size
    # The low half of Adler-32 is 1 + the sum of so few bytes, and faster than sum().
    checksum = _CONSTANT_SUM + (zlib.adler32(raw + digits) & 0xFFFF) - 1
    return b"".join((raw.ljust(100, b"\x00"), _MODE_UID_GID, digits, _MTIME, b"%06o\x00 " % checksum, _REST))
