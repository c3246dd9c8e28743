"""Recovery after damage in a tar: search for the next readable member."""

from __future__ import annotations

import os
import re
from functools import cached_property

from mm_assets.formats.tar.header import (
    BLOCK,
    EXTENDED_KINDS,
    Extended,
    TarDamage,
    check_header,
    member_size,
    padded,
)

_MAGIC = b"ustar"
_MAGIC_AT = 257
_LEAST_READ = 1 << 13  # most headers follow close after the damage
_LARGEST_READ = 1 << 20
_SPARSE = b"S"[0]
_NO_BODY = b"123456"
_NAME_BYTES = 100
_END_BLOCKS = 2 * BLOCK
_EXTENDED_NAME = re.compile(rb"PaxHeader|@LongLink")  # names that writers give these headers
_PAX_RECORD = re.compile(rb"[1-9][0-9]{0,6} [^=\n]{1,255}=")


class Recovery:
    """Search for the points of one tar at which reading can resume.

    Each search begins where the last one ended, so all of them together read the file a bounded number of
    times. Only headers with the magic of USTAR or GNU and a valid checksum count: a block of image data is
    not taken for one by chance.
    """

    def __init__(self, fd: int, file_size: int) -> None:
        self._fd = fd
        self._file_size = file_size

    def behind(self, error: TarDamage, at: int, extended: Extended) -> int:
        """Return the byte offset at which to resume: a header, the end blocks, or the end of the file.

        A member whose extended header is lost is skipped: its own header has only the beginning of its name,
        which may be that of another member.

        Args:
            error: The damage.
            at: Byte offset of the header at which reading failed.
            extended: The extended headers read for that member.
        """
        header = self._block(at)
        if header.count(0) == BLOCK:
            found = (
                at
                if extended.at >= 0
                else self._unless_nameless(
                    at, header, self._search(error.at // BLOCK * BLOCK, self._file_size)
                )
            )
        elif not _is_valid(header):
            found = self._unless_nameless(at, header, self._behind_bad_header(at, header))
        elif header[156] in EXTENDED_KINDS:
            found = self._behind_member(self._end_of(at, header))
        else:
            found = self._end_of(at, header, extended.take_size(_size(header) or 0))
        if found < self._file_size:
            return found
        end = padded(self._zeros_from)  # no member follows, but the end blocks may
        return end if at < end <= self._file_size - _END_BLOCKS else self._file_size

    def _behind_bad_header(self, at: int, header: bytes) -> int:
        """Return the offset of the first header after a bad one.

        A member may be a tar itself. Its headers are skipped if the bad header still has a size, a header
        follows there, and the payload ends with end blocks.
        """
        stated_end = self._end_of(at, header) if _size(header) is not None else self._file_size
        is_confirmed = stated_end < self._file_size and _is_header(self._block(stated_end))
        if (
            is_confirmed
            and stated_end - at > BLOCK + _END_BLOCKS
            and not any(os.pread(self._fd, _END_BLOCKS, stated_end - _END_BLOCKS))
        ):
            return stated_end
        return self._search(at + BLOCK, stated_end if is_confirmed else self._file_size)

    def _unless_nameless(self, bad_at: int, bad: bytes, found: int) -> int:
        """Return ``found``, or the end of its member if that may have lost an extended header."""
        header, before = self._block(found), self._block(found - BLOCK) if found - BLOCK > bad_at else b""
        is_nameless = (
            (bad[156] in EXTENDED_KINDS and _has_magic(bad))
            or _EXTENDED_NAME.search(bad[:_NAME_BYTES])
            or _PAX_RECORD.match(before)
            or 0 not in header[:_NAME_BYTES]
            or (header[156] in b"12" and 0 not in header[157 : 157 + _NAME_BYTES])
        )
        return self._behind_member(found) if _is_header(header) and is_nameless else found

    def _behind_member(self, at: int) -> int:
        """Return the offset after a member with its extended headers; stop at the first non-header."""
        while _is_valid(header := self._block(at)):
            at = self._end_of(at, header)
            if header[156] not in EXTENDED_KINDS:
                break
        return at

    def _search(self, at: int, stop: int) -> int:
        """Return the offset of the first header from ``at`` on, or ``stop``, in 512-byte steps."""
        step = _LEAST_READ
        while at < stop and (chunk := os.pread(self._fd, min(step, stop - at), at)):
            firsts = chunk[_MAGIC_AT::BLOCK]
            number = firsts.find(_MAGIC[:1])
            while number >= 0:
                start = number * BLOCK
                if _is_header(chunk[start : start + BLOCK]):
                    return at + start
                number = firsts.find(_MAGIC[:1], number + 1)
            at += len(chunk)
            step = min(2 * step, _LARGEST_READ)
        return stop

    def _end_of(self, at: int, header: bytes, size: int | None = None) -> int:
        """Return the end of a header's member, maybe beyond the file; ``size`` is the PAX size, if any."""
        size = (_size(header) or 0) if size is None else size
        end = at + BLOCK
        if header[156] == _SPARSE and header[482]:  # further blocks of the sparse map
            while len(block := self._block(end)) == BLOCK:
                end += BLOCK
                if not block[504]:
                    break
        return end + (0 if header[156] in _NO_BODY else padded(size))

    @cached_property
    def _zeros_from(self) -> int:
        """Byte offset at which the trailing zeros of the file begin."""
        at = self._file_size
        while at > 0:
            start = max(at - _LARGEST_READ, 0)
            if rest := os.pread(self._fd, at - start, start).rstrip(b"\0"):
                return start + len(rest)
            at = start
        return 0

    def _block(self, at: int) -> bytes:
        return os.pread(self._fd, BLOCK, at)


def _is_header(block: bytes) -> bool:
    return _has_magic(block) and _is_valid(block)


def _has_magic(block: bytes) -> bool:
    return block[_MAGIC_AT : _MAGIC_AT + len(_MAGIC)] == _MAGIC


def _is_valid(block: bytes) -> bool:
    """Return True if the checksum and the size field are valid."""
    try:
        check_header(block, "", 0)
    except TarDamage:
        return False
    return _size(block) is not None


def _size(header: bytes) -> int | None:
    try:
        return member_size(header, "", 0)
    except TarDamage:
        return None
