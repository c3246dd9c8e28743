"""How many frames a TIFF inside a larger file has, from its directories alone."""

from __future__ import annotations

import os

from .errors import ImageError
from .tiff_ifd import _MAX_DIRECTORIES, _MAX_ENTRIES, Layout, read_header

_LONGEST_HEADER = 16


def count_frames(fd: int, offset: int, size: int) -> tuple[int, ImageError | None]:
    """Sound directories of the main chain of the TIFF at these bytes of an open file, and what ends the chain
    early (else None).

    Reads two fields a directory with ``pread``; the file position is neither used nor moved. The error is
    returned, not raised, for frames before it can be had; it is the one that `tiff.plan_sound_frames` meets.
    """
    seen: set[int] = set()
    try:
        layout, at = read_header(memoryview(os.pread(fd, min(size, _LONGEST_HEADER), offset)))
        room = size
        if at == 0:
            raise ImageError("TIFF without a directory")
        while at:
            if at in seen:
                raise ImageError(f"TIFF directories form a loop at offset {at}")
            if len(seen) == _MAX_DIRECTORIES:
                raise ImageError(f"TIFF has more than {_MAX_DIRECTORIES} directories")
            length, following = _directory(fd, offset, size, layout, at)
            room -= length  # sound directories do not overlap, so together they fit into the file
            if room < 0:
                raise ImageError("TIFF directories overlap each other")
            seen.add(at)
            at = following
    except ImageError as error:
        return len(seen), error.with_traceback(None)
    return len(seen), None


def _directory(fd: int, offset: int, size: int, layout: Layout, at: int) -> tuple[int, int]:
    """Length in bytes of the directory at ``at`` within the TIFF, and where the next one is."""
    if not layout.header_size <= at <= size - layout.number.size:
        raise ImageError(f"TIFF directory at offset {at} lies outside the {size} bytes")
    number: int = layout.number.unpack(_read(fd, offset + at, layout.number.size))[0]
    if not 0 < number <= _MAX_ENTRIES:
        raise ImageError(f"TIFF directory at offset {at} claims {number} entries")
    link = layout.number.size + number * layout.entry.size
    if at + link > size:
        raise ImageError(
            f"TIFF directory at offset {at} claims {number} entries: more than {size} bytes hold"
        )
    if at + link + layout.pointer.size > size:
        raise ImageError(f"TIFF directory at offset {at} is cut short: {size} bytes given")
    following: int = layout.pointer.unpack(_read(fd, offset + at + link, layout.pointer.size))[0]
    return link + layout.pointer.size, following


def _read(fd: int, at: int, size: int) -> bytes:
    data = os.pread(fd, size, at)
    if len(data) < size:
        raise ImageError(f"the file ends before byte {at + size}")
    return data
