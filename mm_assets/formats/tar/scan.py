"""Scan of a local uncompressed tar: its members, from the headers alone.

Damage is raised, or returned as damaged ranges; it never just shortens the list of members.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Sequence

from mm_assets.formats.tar.header import (
    BLOCK,
    EXTENDED_KINDS,
    Extended,
    check_header,
    damage,
    decode_name,
    full_name,
    member_size,
    padded,
)
from mm_assets.formats.tar.header import TarDamage as TarDamage
from mm_assets.formats.tar.index import Ambiguous as Ambiguous
from mm_assets.formats.tar.index import DamagedRange as DamagedRange
from mm_assets.formats.tar.index import Member as Member
from mm_assets.formats.tar.index import Skipped as Skipped
from mm_assets.formats.tar.index import TarIndex as TarIndex
from mm_assets.formats.tar.index import by_name, follow_links, residue_bytes
from mm_assets.formats.tar.recovery import Recovery
from mm_assets.interleaved.errors import DataError

MAX_EXTENDED_HEADER = 1 << 20  # bytes of one PAX block or GNU long name; a path has at most 4 KiB
MAX_DAMAGED_RANGES = 1000  # per tar; the last of them covers all that follows

_ZERO_BLOCK = bytes(BLOCK)
_ZERO_TAIL = bytes(1 << 16)
_LEAST_TAIL = 2 * BLOCK
_REGULAR = b"\0" + b"07"  # 7: "contiguous", a hint to 1980s file systems
_HARD_LINK, _SYMLINK, _SPARSE = b"12S"
_NO_BODY = b"\0" + b"123456"  # folders, links, devices, pipes: their size field has no meaning
_NOT_WHOLE = {b"S"[0]: "sparse member", b"M"[0]: "member continued from another volume"}
_NO_FILE = b"346DV"  # devices, pipes, GNU's folder lists and volume labels
_KNOWN = _NO_BODY + b"07SM" + _NO_FILE  # POSIX: a member of any other type is a regular file


def scan(fd: int, name: str) -> TarIndex:
    """Index the tar behind a local file descriptor.

    Reads 512 bytes per member with ``pread``, and no payload; the file position is neither used nor moved.
    Folders are left out, and what macOS and tar programs have added (``left_out`` of the index). A leading
    ``./`` is stripped from names. A name that is not UTF-8 gets backslash escapes, and its member is marked
    ``broken``.

    Args:
        fd: Descriptor of an uncompressed tar.
        name: Name of the tar in errors.

    Raises:
        TarDamage: The list of members or the place of a payload is in doubt: a checksum mismatch, data beyond
            the end of the file, fewer than two zero blocks at the end, anything after them, sparse and
            multi-volume members, empty files, gzip.
    """
    walk = _Walk(fd, name)
    walk.run(0)
    return _index(walk, fd, name, ())


def scan_tolerant(fd: int, name: str) -> TarIndex:
    """Index a tar that may be damaged: all members before and after damage, plus the damaged ranges.

    For a sound tar the result is that of `scan`.
    """
    walk = _Walk(fd, name)
    recovery = Recovery(fd, walk.file_size)
    damaged_ranges: list[DamagedRange] = []
    at = 0
    while not damaged_ranges or at < walk.file_size:
        try:
            walk.run(at)
            break
        except TarDamage as error:
            is_last = error.is_cut or len(damaged_ranges) + 1 == MAX_DAMAGED_RANGES
            at = walk.file_size if is_last else recovery.behind(error, walk.at, walk.extended)
            damaged_ranges.append(DamagedRange(walk.end, at, error.with_traceback(None)))
    return _index(walk, fd, name, tuple(damaged_ranges))


def _index(walk: _Walk, fd: int, name: str, damaged_ranges: tuple[DamagedRange, ...]) -> TarIndex:
    members = walk.members
    names = by_name(members)
    if walk.has_links:
        members = follow_links(members, names)
        names = by_name(members)
    left_out = {
        id(member)
        for member in members
        if (content := residue_bytes(member.name)) is not None
        and member.offset >= 0
        and content.match(os.pread(fd, min(member.size, BLOCK), member.offset))
    }
    if not left_out:
        return TarIndex(name, members, names, walk.skipped, walk.end, damaged_ranges)
    kept = [member for member in members if id(member) not in left_out]
    left_out_names = tuple(member.name for member in members if id(member) in left_out)
    return TarIndex(name, kept, by_name(kept), walk.skipped, walk.end, damaged_ranges, left_out_names)


class _Walk:
    """A walk from header to header.

    ``at`` is the byte offset of the current header, ``end`` that of the end of all complete members so far.
    """

    def __init__(self, fd: int, name: str) -> None:
        self.members: list[Member] = []
        self.skipped: list[Skipped] = []
        self.extended = Extended()
        self.has_links = False
        self.at = self.end = 0
        self.file_size = os.fstat(fd).st_size
        self._fd = fd
        self._name = name

    def run(self, at: int) -> None:
        """Walk from the header at a byte offset to the end blocks; raise `TarDamage` if that fails."""
        fd, name, file_size = self._fd, self._name, self.file_size
        members, extended = self.members, self.extended
        extended.clear()
        while True:
            self.at = at
            if extended.at < 0:
                self.end = at
            header = os.pread(fd, BLOCK, at)
            if header == _ZERO_BLOCK:
                break
            check_header(header, name, at)
            kind = header[156]
            size = member_size(header, name, at)
            if kind in EXTENDED_KINDS:
                body = _read_extended(fd, name, at, size)
                extended.add(kind, body, name, at)
                at += BLOCK + padded(size)
                continue
            if extended.at < 0 and not extended.shared and not header[345]:
                start, raw = at, header[:100].split(b"\0", 1)[0]
            else:
                start = extended.at if extended.at >= 0 else at
                raw, size = extended.take_name(full_name(header)), extended.take_size(size)
                if (sparse_name := extended.sparse_name) is not None:
                    raw, kind = sparse_name or raw, _SPARSE
            text, broken = decode_name(raw)
            data = at + BLOCK
            if kind in _NOT_WHOLE:
                self.skipped.append(Skipped(text, chr(kind), start))
                raise damage(name, at, f"{_NOT_WHOLE[kind]} {text!r} is not supported")
            # In old tars only a trailing slash marks a folder.
            is_file = (kind in _REGULAR and (kind or not text.endswith("/"))) or kind not in _KNOWN
            if not is_file and kind in _NO_BODY:
                size = 0  # some writers note the size of a link's target
            at = data + padded(size)
            if data + size > file_size:
                pass
            elif is_file:
                members.append(Member(text, data, size, None, start, broken))
            elif kind in (_HARD_LINK, _SYMLINK):
                target = extended.take_link(header[157:257].split(b"\0", 1)[0])
                members.append(_link(text, target, kind, start, broken))
                self.has_links = True
            elif kind in _NO_FILE:
                self.skipped.append(Skipped(text, chr(kind), start))
            if at > file_size:
                if data + size <= file_size:  # only padding is missing
                    self.end = file_size
                reason = f"{size} bytes of {text!r} and their padding end at {at}, the file at {file_size}"
                raise damage(name, data, reason, is_cut=True)
            if extended.at >= 0:
                extended.clear()
        if extended.at >= 0:
            raise damage(name, extended.at, "an extended header without its member")
        extended.shared.clear()  # another tar may follow
        _check_tail(fd, name, at, file_size)


def read_members(fd: int, members: Sequence[Member], dest: memoryview, name: str = "tar") -> int:
    """Read payloads one after the other into ``dest`` and return their total bytes.

    Raises:
        ValueError: A member is broken, or the buffer is too small; nothing has been read then.
        TarDamage: The file ends early.
    """
    for member in members:
        if member.broken is not None:
            raise DataError(f"{name}: member {member.name!r} cannot be read: {member.broken}")
    total = sum(member.size for member in members)
    view = dest.cast("B")
    if total > len(view):
        raise ValueError(f"{name}: {total} bytes of members do not fit into a buffer of {len(view)}")
    filled = 0
    for member in members:
        end, at = filled + member.size, member.offset
        while filled < end:
            count = os.preadv(fd, [view[filled:end]], at)
            if count == 0:
                raise damage(
                    name,
                    at,
                    f"the file ends {end - filled} bytes before the end of {member.name!r}",
                    is_cut=True,
                )
            filled += count
            at += count
    return total


def _check_tail(fd: int, name: str, at: int, file_size: int) -> None:
    if file_size - at < _LEAST_TAIL:
        raise damage(
            name,
            at,
            f"{file_size - at} of at least {_LEAST_TAIL} zero bytes at the end: the file was cut here",
            is_cut=True,
        )
    while chunk := os.pread(fd, len(_ZERO_TAIL), at):
        if chunk != _ZERO_TAIL[: len(chunk)]:
            offset = at + len(chunk) - len(chunk.lstrip(b"\0"))
            raise damage(
                name, offset, "data after the end-of-archive blocks: a zeroed header, or two tars in one file"
            )
        at += len(chunk)


def _read_extended(fd: int, name: str, at: int, size: int) -> bytes:
    if size > MAX_EXTENDED_HEADER:
        raise damage(name, at, f"extended header of {size} bytes; at most {MAX_EXTENDED_HEADER} are read")
    body = os.pread(fd, padded(size), at + BLOCK)
    if len(body) < padded(size):
        raise damage(name, at, "extended header beyond the end of the file", is_cut=True)
    return body[:size]


def _link(name: str, target: bytes, kind: int, start: int, broken: str | None) -> Member:
    """Return a link member whose ``link`` is the archive path of its immediate target."""
    path, unreadable = decode_name(target)
    if kind == _SYMLINK:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
        if path == ".." or path.startswith(("/", "../")):
            broken = broken or f"links to {path!r}, outside the tar"
    broken = broken or (unreadable and f"link target: {unreadable}")
    return Member(name, -1, 0, path, start, broken)
