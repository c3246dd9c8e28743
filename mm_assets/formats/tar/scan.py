"""Scan of a local uncompressed tar: the index of its members, from the headers alone, with links resolved.

Damage is raised, or returned as damaged ranges; it never just shortens the list of members. After damage,
`Recovery` searches for the next readable member.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from mm_assets.formats.tar import (
    BLOCK,
    END_BLOCKS,
    EXTENDED_KINDS,
    Extended,
    TarDamage,
    check_header,
    damage,
    decode_name,
    full_name,
    member_size,
    padded,
)
from mm_assets.model.errors import DANGLING_REFERENCE, DataError, Fault

_MAGIC = b"ustar"
_MAGIC_AT = 257
_LEAST_READ = 1 << 13  # most headers follow close after the damage
_LARGEST_READ = 1 << 20
_SPARSE = b"S"[0]
_NO_BODY = b"123456"
_NAME_BYTES = 100
_EXTENDED_NAME = re.compile(rb"PaxHeader|@LongLink")  # names that writers give these headers
_PAX_RECORD = re.compile(rb"[1-9][0-9]{0,6} [^=\n]{1,255}=")


class Member(NamedTuple):
    """A regular file or a link in a tar; offsets and sizes in bytes.

    For a link, ``link`` is the name of the regular member it resolves to, and ``offset`` and ``size`` are
    that member's. ``broken`` is the reason why a member has no payload that can be trusted (a dangling link,
    a name that is not UTF-8), else None.
    """

    name: str
    offset: int  # of the payload; -1 for a broken link
    size: int
    link: str | None
    header_offset: int  # of the first block that belongs to the member, its extended headers included
    broken: str | None = None


class Ambiguous(NamedTuple):
    """A name that several members have: none of them may be used for it."""

    name: str
    members: tuple[Member, ...]


# What macOS and tar programs leave among the files, by name and by first bytes: a file that merely has
# such a name is the user's.
_RESIDUE = re.compile(
    r"(?:.*/)?(?:(?P<apple_double>\._[^/]*|\.AppleDouble/.*)|(?P<finder>\.DS_Store)"
    r"|(?P<extended_header>PaxHeaders?(?:\.\d+)?/.*))",
    re.DOTALL,
)
_RESIDUE_BYTES = {
    "apple_double": re.compile(rb"\0\x05\x16\x07"),
    "finder": re.compile(rb"\0\0\0\x01Bud1"),
    "extended_header": re.compile(rb"\d+ [A-Za-z][\w.:-]*="),
}

_KINDS = {
    "3": "a character device",
    "4": "a block device",
    "6": "a pipe",
    "D": "a list of the files in a folder",
    "V": "the label of a volume",
    "S": "a sparse file",
    "M": "a part of a file that began on another volume",
}


class Skipped(NamedTuple):
    """A member that is no file, link or folder, or that cannot be read.

    ``kind`` is its type character, ``header_offset`` is in bytes.
    """

    name: str
    kind: str
    header_offset: int

    @property
    def reason(self) -> str:
        """The kind of member, in words."""
        return f"{_KINDS[self.kind]}: not read as a file"

    @property
    def has_lost_bytes(self) -> bool:
        """True for a file whose bytes cannot be read; they are a damaged range as well."""
        return self.kind in "SM"


class DamagedRange(NamedTuple):
    """Bytes from ``start`` up to ``end`` that belong to no readable member, and the reason."""

    start: int
    end: int
    damage: TarDamage


@dataclass(frozen=True, slots=True)
class TarIndex:
    """The members of a tar in archive order, and what was skipped or damaged.

    ``end`` is the byte offset at which the zero blocks begin. Every byte belongs to a member or its headers,
    to an end block, or to one of the ``damaged_ranges``, which are in archive order. ``left_out`` has the
    names of members that are there, and are none of the user's files: see `residue_bytes`.
    """

    name: str
    members: list[Member]
    by_name: dict[str, Member | Ambiguous]
    skipped: list[Skipped]
    end: int
    damaged_ranges: tuple[DamagedRange, ...] = ()
    left_out: tuple[str, ...] = ()

    def find(self, name: str) -> Member | Fault | None:
        """Return the member of a name, None if there is none.

        A fault is returned if the name exists but cannot be used.
        """
        found = self.by_name.get(name)
        if found is None:
            return None
        if isinstance(found, Ambiguous):
            return Fault(DANGLING_REFERENCE, f"ambiguous: {len(found.members)} members are called {name!r}")
        if found.broken:
            return Fault(DANGLING_REFERENCE, f"dangling reference: member {name!r}: {found.broken}")
        return found


def residue_bytes(name: str) -> re.Pattern[bytes] | None:
    """Return how a member begins that macOS or a tar program has left; None if its name tells that none has.

    Such are AppleDouble files (``._NAME``, also in ``__MACOSX``), the ``.DS_Store`` of Finder, and extended
    headers that were unpacked as files (``PaxHeader/NAME``).
    """
    found = _RESIDUE.fullmatch(name)
    return None if found is None else _RESIDUE_BYTES[str(found.lastgroup)]


def follow_links(members: list[Member], names: dict[str, Member | Ambiguous]) -> list[Member]:
    """Return the members with each link resolved to the payload it leads to, or marked ``broken``."""
    resolved: dict[int, Member] = {}  # by header offset, so that a chain shared by many links is walked once
    for member in members:
        chain: dict[int, Member] = {}
        current: Member = member
        reason: str | None = None
        while current.link is not None and current.header_offset not in resolved and reason is None:
            if current.header_offset in chain:
                reason = f"links to {current.name!r}, which leads back to itself"
                break
            if current.broken is not None:
                reason = current.broken
            chain[current.header_offset] = current
            target = names.get(current.link)
            if target is None:
                reason = reason or f"links to {current.link!r}, which is no file of this tar"
            elif isinstance(target, Ambiguous):
                reason = (
                    reason or f"links to {current.link!r}, a name that occurs {len(target.members)} times"
                )
            else:
                current = target
        final = resolved.get(current.header_offset, current)
        reason = reason or final.broken
        for link in chain.values():
            if reason is None:
                link = link._replace(offset=final.offset, size=final.size, link=final.link or final.name)
            resolved[link.header_offset] = link._replace(broken=reason)
    return [resolved.get(member.header_offset, member) for member in members]


def by_name(members: Iterable[Member]) -> dict[str, Member | Ambiguous]:
    """Return the member of each name, in archive order."""
    names: dict[str, Member | Ambiguous] = {}
    repeated: dict[str, list[Member]] = {}
    for member in members:
        first = names.setdefault(member.name, member)
        if first is not member:
            assert isinstance(first, Member)
            repeated.setdefault(member.name, [first]).append(member)
    names.update((name, Ambiguous(name, tuple(group))) for name, group in repeated.items())
    return names


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
        return end if at < end <= self._file_size - END_BLOCKS else self._file_size

    def _behind_bad_header(self, at: int, header: bytes) -> int:
        """Return the offset of the first header after a bad one.

        A member may be a tar itself. Its headers are skipped if the bad header still has a size, a header
        follows there, and the payload ends with end blocks.
        """
        stated_end = self._end_of(at, header) if _size(header) is not None else self._file_size
        is_confirmed = stated_end < self._file_size and _is_header(self._block(stated_end))
        if (
            is_confirmed
            and stated_end - at > BLOCK + END_BLOCKS
            and not any(os.pread(self._fd, END_BLOCKS, stated_end - END_BLOCKS))
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


MAX_EXTENDED_HEADER = 1 << 20  # bytes of one PAX block or GNU long name; a path has at most 4 KiB
MAX_DAMAGED_RANGES = 1000  # per tar; the last of them covers all that follows

_ZERO_BLOCK = bytes(BLOCK)
_ZERO_TAIL = bytes(1 << 16)
_LEAST_TAIL = 2 * BLOCK
_REGULAR = b"\0" + b"07"  # 7: "contiguous", a hint to 1980s file systems
_HARD_LINK, _SYMLINK, _SPARSE_TYPE = b"12S"
_TYPES_WITHOUT_BODY = b"\0" + b"123456"  # folders, links, devices, pipes: their size field has no meaning
_NOT_WHOLE = {b"S"[0]: "sparse member", b"M"[0]: "member continued from another volume"}
_NO_FILE = b"346DV"  # devices, pipes, GNU's folder lists and volume labels
_KNOWN = _TYPES_WITHOUT_BODY + b"07SM" + _NO_FILE  # POSIX: a member of any other type is a regular file


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
                    raw, kind = sparse_name or raw, _SPARSE_TYPE
            text, broken = decode_name(raw)
            data = at + BLOCK
            if kind in _NOT_WHOLE:
                self.skipped.append(Skipped(text, chr(kind), start))
                raise damage(name, at, f"{_NOT_WHOLE[kind]} {text!r} is not supported")
            # In old tars only a trailing slash marks a folder.
            is_file = (kind in _REGULAR and (kind or not text.endswith("/"))) or kind not in _KNOWN
            if not is_file and kind in _TYPES_WITHOUT_BODY:
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


def read_member(fd: int, member: Member, name: str = "tar") -> bytes:
    """Return the payload of a member; raises as `read_members`."""
    data = bytearray(member.size)
    read_members(fd, [member], memoryview(data), name)
    return bytes(data)


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
