"""Members of a local uncompressed tar, from its headers alone. Damage is an error, never a shorter list."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mm_assets.formats.webdataset.tar_header import (
    BLOCK,
    EXTENDED_KINDS,
    Extended,
    TarDamage,
    check_header,
    damage,
    decode_name,
    full_name,
    padded,
    size_of,
)

__all__ = ["Ambiguous", "Member", "Skipped", "TarDamage", "TarIndex", "read_members", "scan"]

MAX_EXTENDED_HEADER = 1 << 20  # bytes of one PAX block or GNU long name; a path has at most 4 KiB

_ZERO_BLOCK = bytes(BLOCK)
_ZERO_TAIL = bytes(1 << 16)
_LEAST_TAIL = 2 * BLOCK
_REGULAR = b"\0" + b"07"  # 7: "contiguous", a hint to 1980s file systems
_HARD_LINK, _SYMLINK, _FOLDER = b"125"
_WITHOUT_BODY = b"346"  # devices and pipes: their size field means nothing
_NOT_WHOLE = {b"S"[0]: "sparse member", b"M"[0]: "member continued from another volume"}


class Member(NamedTuple):
    """A regular file or a link in a tar; offsets and sizes in bytes.

    For a link, ``link`` is the name of the regular member that it leads to, ``offset`` and ``size`` are that member's.
    A member with ``broken`` set has no payload that can be trusted (a link that leads nowhere, a name that is not
    UTF-8): ``broken`` says why.
    """

    name: str
    offset: int  # of the payload; -1 for a broken link
    size: int
    link: str | None
    header_offset: int  # of the first block that belongs to the member, its extended headers included
    broken: str | None = None


class Ambiguous(NamedTuple):
    """A name that several members carry: none of them may stand for it."""

    name: str
    members: tuple[Member, ...]


class Skipped(NamedTuple):
    """A member that is neither file, link nor folder; ``kind`` is its type character."""

    name: str
    kind: str
    header_offset: int


@dataclass(frozen=True, slots=True)
class TarIndex:
    """What `scan` found: ``members`` in archive order, ``end`` the byte offset at which the zero blocks begin."""

    name: str
    members: list[Member]
    by_name: dict[str, Member | Ambiguous]
    skipped: list[Skipped]
    end: int


def scan(fd: int, name: str) -> TarIndex:
    """Index the tar behind a local file descriptor; ``name`` is what errors call it.

    Reads 512 bytes a member with ``pread`` (the file position is neither used nor moved) and no payload. Folders are
    left out; a leading ``./`` is stripped from names; a name that is not UTF-8 is spelled with backslash escapes and
    its member marked ``broken``.

    Raises `TarDamage` for whatever makes the list of members or the place of a payload doubtful: a checksum mismatch,
    data beyond the end of the file, fewer than two zero blocks at the end, anything after them, sparse and multi-volume
    members, empty files, gzip.
    """
    file_size = os.fstat(fd).st_size
    members: list[Member] = []
    skipped: list[Skipped] = []
    extended = Extended()
    has_links = False
    at = 0
    while True:
        header = os.pread(fd, BLOCK, at)
        if header == _ZERO_BLOCK:
            break
        check_header(header, name, at)
        kind = header[156]
        size = size_of(header, name, at)
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
        text, broken = decode_name(raw)
        data = at + BLOCK
        if kind in _NOT_WHOLE:
            raise damage(name, at, f"{_NOT_WHOLE[kind]} {text!r} is not supported")
        if kind in _REGULAR and (kind or not text.endswith("/")):  # old tars have no folder type but the slash
            members.append(Member(text, data, size, None, start, broken))
        elif kind in (_HARD_LINK, _SYMLINK):
            target = extended.take_link(header[157:257].split(b"\0", 1)[0])
            members.append(_link(text, target, kind, start, broken))
            has_links, size = True, 0  # some writers note the target's size; no body follows
        elif kind in _WITHOUT_BODY or kind in (0, _FOLDER):
            size = 0
        if kind not in _REGULAR and kind not in (_HARD_LINK, _SYMLINK, _FOLDER):
            skipped.append(Skipped(text, chr(kind), start))
        at = data + padded(size)
        if at > file_size:
            raise damage(name, data, f"{size} bytes of {text!r} and their padding end at {at}, the file at {file_size}")
        if extended.at >= 0:
            extended.clear()
    if extended.at >= 0:
        raise damage(name, extended.at, "an extended header without its member")
    _check_tail(fd, name, at, file_size)
    by_name = _by_name(members)
    if has_links:
        members = _follow_links(members, by_name)
        by_name = _by_name(members)
    return TarIndex(name, members, by_name, skipped, at)


def read_members(fd: int, members: Sequence[Member], dest: memoryview, name: str = "tar") -> int:
    """Read payloads one after the other into ``dest`` and return their bytes in all.

    Raises ``ValueError`` for a broken member or a buffer that is too small (nothing is read then), `TarDamage` when the
    file ends early.
    """
    for member in members:
        if member.broken is not None:
            raise ValueError(f"{name}: member {member.name!r} cannot be read: {member.broken}")
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
                raise damage(name, at, f"the file ends {end - filled} bytes before the end of {member.name!r}")
            filled += count
            at += count
    return total


def _check_tail(fd: int, name: str, at: int, file_size: int) -> None:
    if file_size - at < _LEAST_TAIL:
        raise damage(
            name, at, f"{file_size - at} of at least {_LEAST_TAIL} zero bytes at the end: the file was cut here"
        )
    while chunk := os.pread(fd, len(_ZERO_TAIL), at):
        if chunk != _ZERO_TAIL[: len(chunk)]:
            offset = at + len(chunk) - len(chunk.lstrip(b"\0"))
            raise damage(name, offset, "data after the end-of-archive blocks: a zeroed header, or two tars in one file")
        at += len(chunk)


def _read_extended(fd: int, name: str, at: int, size: int) -> bytes:
    if size > MAX_EXTENDED_HEADER:
        raise damage(name, at, f"extended header of {size} bytes; at most {MAX_EXTENDED_HEADER} are read")
    body = os.pread(fd, padded(size), at + BLOCK)
    if len(body) < padded(size):
        raise damage(name, at, "extended header beyond the end of the file")
    return body[:size]


def _link(name: str, target: bytes, kind: int, start: int, broken: str | None) -> Member:
    """A link whose ``link`` is still its own target's archive path."""
    path, unreadable = decode_name(target)
    if kind == _SYMLINK:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
        if path == ".." or path.startswith(("/", "../")):
            broken = broken or f"links to {path!r}, outside the tar"
    broken = broken or (unreadable and f"link target: {unreadable}")
    return Member(name, -1, 0, path, start, broken)


def _follow_links(members: list[Member], by_name: dict[str, Member | Ambiguous]) -> list[Member]:
    settled: dict[int, Member] = {}  # by header offset; a chain is walked once however many links share it
    for member in members:
        chain: dict[int, Member] = {}
        current: Member = member
        reason: str | None = None
        while current.link is not None and current.header_offset not in settled and reason is None:
            if current.header_offset in chain:
                reason = f"links to {current.name!r}, which leads back to itself"
                break
            if current.broken is not None:
                reason = current.broken
            chain[current.header_offset] = current
            target = by_name.get(current.link)
            if target is None:
                reason = reason or f"links to {current.link!r}, which is no file of this tar"
            elif isinstance(target, Ambiguous):
                reason = reason or f"links to {current.link!r}, a name that occurs {len(target.members)} times"
            else:
                current = target
        final = settled.get(current.header_offset, current)
        reason = reason or final.broken
        for link in chain.values():
            if reason is None:
                link = link._replace(offset=final.offset, size=final.size, link=final.link or final.name)
            settled[link.header_offset] = link._replace(broken=reason)
    return [settled.get(member.header_offset, member) for member in members]


def _by_name(members: Iterable[Member]) -> dict[str, Member | Ambiguous]:
    names: dict[str, Member | Ambiguous] = {}
    repeated: dict[str, list[Member]] = {}
    for member in members:
        first = names.setdefault(member.name, member)
        if first is not member:
            assert isinstance(first, Member)
            repeated.setdefault(member.name, [first]).append(member)
    names.update((name, Ambiguous(name, tuple(group))) for name, group in repeated.items())
    return names
