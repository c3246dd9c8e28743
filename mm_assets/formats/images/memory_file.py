"""A file in memory that is read without a copy of its own."""

from __future__ import annotations

import io
from typing import Any, Final

_WORTH_IT: Final = 1 << 20  # bytes: a smaller file is copied sooner than it is read through Python


class MemoryFile(io.RawIOBase):
    """The bytes of a view as a file.

    Args:
        data: bytes, which must not change or go away.
    """

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence]
        if origin + offset < 0:
            raise ValueError(f"negative seek value {origin + offset}")
        self._at = origin + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Return up to ``size`` bytes; Pillow asks for as many as a file claims to have."""
        left = max(0, len(self._data) - self._at)
        end = self._at + (left if size is None or size < 0 else min(size, left))
        data = bytes(self._data[self._at : end])
        self._at += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        into = memoryview(buffer).cast("B")
        found = self._data[self._at : self._at + len(into)]
        into[: len(found)] = found
        self._at += len(found)
        return len(found)

    def getvalue(self) -> memoryview:
        """Return all bytes; Pillow hands them to libtiff."""
        return self._data


def memory_file(data: bytes | memoryview) -> io.BytesIO | MemoryFile:
    """Return a file of some bytes; large ones are not copied."""
    if isinstance(data, bytes) or len(data) < _WORTH_IT:
        return io.BytesIO(data)  # which shares bytes
    return MemoryFile(data)
