"""Frame count of a TIFF inside a larger file, from its directories alone."""

from __future__ import annotations

import os

from .errors import ImageError
from .tiff_ifd import _MAX_DIRECTORIES, _MAX_ENTRIES, Layout, read_header

_LONGEST_HEADER = 16


def count_frames(fd: int, offset: int, size: int) -> tuple[int, ImageError | None]:
    """Count the frames of a TIFF inside an open file: the valid directories of its main chain.

    Reads two fields per directory with ``pread``; the file position is neither used nor moved.

    Args:
        fd: Descriptor of the file.
        offset: First byte of the TIFF in it.
        size: Bytes of the TIFF.

    Returns:
        The count, and the error that ends the chain early (else None). The error is returned, not raised,
        because the frames before it can be used; it is the same error that `tiff.plan_sound_frames` reports.
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
            room -= length  # valid directories do not overlap, so together they fit into the file
            if room < 0:
                raise ImageError("TIFF directories overlap each other")
            seen.add(at)
            at = following
    except ImageError as error:
        return len(seen), error.with_traceback(None)
    return len(seen), None


def _directory(fd: int, offset: int, size: int, layout: Layout, at: int) -> tuple[int, int]:
    """Return the bytes of the directory at offset ``at`` of the TIFF, and the offset of the next one."""
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
