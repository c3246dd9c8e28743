"""What is known of a tar's members, and where its links lead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from mm_assets.formats.tar.header import TarDamage
from mm_assets.interleaved.faults import DANGLING_REFERENCE, Fault


class Member(NamedTuple):
    """A regular file or a link in a tar; offsets and sizes in bytes.

    For a link, ``link`` is the name of the regular member that it leads to, ``offset`` and ``size`` are that
    member's. A member with ``broken`` set has no payload that can be trusted (a link that leads nowhere, a
    name that is not UTF-8): ``broken`` says why.
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
    """A member that is no file, link or folder, or none that can be read; ``kind`` is its type character."""

    name: str
    kind: str
    header_offset: int

    @property
    def reason(self) -> str:
        """What it is."""
        return f"{_KINDS[self.kind]}: not read as a file"

    @property
    def has_lost_bytes(self) -> bool:
        """Whether it is a file whose bytes cannot be had: they are a damaged stretch, too."""
        return self.kind in "SM"


class DamagedRange(NamedTuple):
    """Bytes from ``start`` up to ``end`` that belong to no member that can be read, and why."""

    start: int
    end: int
    damage: TarDamage


@dataclass(frozen=True, slots=True)
class TarIndex:
    """What was found: ``members`` in archive order, ``end`` the byte offset at which the zero blocks begin.

    ``damaged_ranges`` are in archive order. Each byte of the tar is a member's or its headers', in an end
    block, or in one of them.
    """

    name: str
    members: list[Member]
    by_name: dict[str, Member | Ambiguous]
    skipped: list[Skipped]
    end: int
    damaged_ranges: tuple[DamagedRange, ...] = ()

    def find(self, name: str) -> Member | Fault | None:
        """The member of a name; a fault when the name is there but cannot be followed; None when it is not
        there.
        """
        found = self.by_name.get(name)
        if found is None:
            return None
        if isinstance(found, Ambiguous):
            return Fault(DANGLING_REFERENCE, f"ambiguous: {len(found.members)} members are called {name!r}")
        if found.broken:
            return Fault(DANGLING_REFERENCE, f"dangling reference: member {name!r}: {found.broken}")
        return found


def follow_links(members: list[Member], names: dict[str, Member | Ambiguous]) -> list[Member]:
    """The members, each link with the place of the payload that it leads to, or ``broken``."""
    resolved: dict[int, Member] = {}  # by header offset; a chain is walked once however many links share it
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
    """The member of each name, in archive order."""
    names: dict[str, Member | Ambiguous] = {}
    repeated: dict[str, list[Member]] = {}
    for member in members:
        first = names.setdefault(member.name, member)
        if first is not member:
            assert isinstance(first, Member)
            repeated.setdefault(member.name, [first]).append(member)
    names.update((name, Ambiguous(name, tuple(group))) for name, group in repeated.items())
    return names
