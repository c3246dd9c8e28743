"""Index of a tar's members, with links resolved."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from mm_assets.formats.tar.header import TarDamage
from mm_assets.interleaved.faults import DANGLING_REFERENCE, Fault


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
