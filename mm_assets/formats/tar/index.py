"""Tar headers and the index of a tar's members, with links resolved.

A header of 512 bytes is parsed and checked, with the extended headers (PAX, GNU) before it. A `TarIndex` has
the members in archive order, and what was skipped or damaged.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from mm_assets.model.errors import DAMAGED_TAR, DANGLING_REFERENCE, TRUNCATED_TAR, Fault, MmAssetsError

BLOCK = 512

_PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK = b"xgLK"
_SOLARIS_PAX = b"X"[0]
_SPARSE, _SPARSE_NAME = b"GNU.sparse", b"GNU.sparse.name"
EXTENDED_KINDS = b"xXgLK"
_LEADING_DOTS = re.compile(rb"\A(?:\./+)+")
_LONGEST_NUMBER = 20  # digits; beyond 4,300 Python refuses to convert


class TarDamage(MmAssetsError, ValueError):
    """The tar is cut, corrupt, or has content that cannot be read exactly.

    The message names file, byte offset and reason. ``at`` is that offset, in the file that is damaged (the
    compressed one for gzip). ``is_cut`` is True if the file just ends too early. ``kind`` is the class of the
    fault.
    """

    def __init__(self, message: str, at: int = 0, is_cut: bool = False) -> None:
        super().__init__(message)
        self.at = at
        self.is_cut = is_cut

    @property
    def kind(self) -> str:
        return TRUNCATED_TAR if self.is_cut else DAMAGED_TAR


class Extended:
    """Values of the extended headers (PAX, GNU) before a member, as stored.

    ``shared`` has the global PAX values, which hold for all later members.
    ``at`` is the byte offset of the first such header, -1 if there was none.
    """

    __slots__ = ("at", "local", "shared", "_kinds")

    def __init__(self) -> None:
        self.shared: dict[bytes, bytes] = {}
        self.clear()

    def clear(self) -> None:
        """Forget the values of one member; global values stay."""
        self.at = -1
        self.local: dict[bytes, bytes] = {}
        self._kinds: set[int] = set()

    def add(self, kind: int, body: bytes, name: str, at: int) -> None:
        """Take in the body of an extended header.

        Raises:
            TarDamage: The header is malformed, or contradicts another one about the same member.
        """
        if kind == _PAX_GLOBAL:
            self.shared.update(_pax_values(body, name, at))
            return
        kind = _PAX if kind == _SOLARIS_PAX else kind
        if kind in (_LONG_NAME, _LONG_LINK):
            values = {b"path" if kind == _LONG_NAME else b"linkpath": body.split(b"\0", 1)[0]}
        else:
            values = _pax_values(body, name, at)
        # Readers disagree on which of two headers counts, so a tar in which they differ is refused.
        if kind in self._kinds or any(self.local.get(key, value) != value for key, value in values.items()):
            raise damage(name, at, "two extended headers contradict each other about one member")
        self._kinds.add(kind)
        self.local.update(values)
        self.at = at if self.at < 0 else self.at

    def take_name(self, raw: bytes) -> bytes:
        """Return the stored name of the member; ``raw`` is the one in its own header."""
        return self._value(b"path") or raw

    def take_link(self, raw: bytes) -> bytes:
        """Return the stored link target of the member; ``raw`` is the one in its own header."""
        return self._value(b"linkpath") or raw

    def take_size(self, size: int) -> int:
        """Return the payload bytes of the member; ``size`` is from its own header."""
        value = self._value(b"size")
        return int(value) if value else size

    @property
    def sparse_name(self) -> bytes | None:
        """Name of a sparse file, whose stored bytes are a map and pieces; None for any other member.

        Empty if only the member's own header has the name.
        """
        return self._value(_SPARSE)

    def _value(self, key: bytes) -> bytes | None:
        return self.local.get(key, self.shared.get(key))  # an empty local value cancels a global one


def _pax_values(body: bytes, name: str, at: int) -> dict[bytes, bytes]:
    """Return the PAX keywords that place a member, and `_SPARSE` if any keyword says that it is sparse.

    Raises:
        TarDamage: A record is malformed.
    """
    values: dict[bytes, bytes] = {}
    start = 0
    while start < len(body) and body[start]:
        space = body.find(b" ", start, start + 8)
        digits = body[start:space] if space > 0 else b""
        end = start + int(digits) if digits.isdigit() else 0
        key, equals, value = body[space + 1 : end - 1].partition(b"=")
        if end <= space + 1 or end > len(body) or not equals or body[end - 1] != 10:
            raise damage(name, at, f"malformed PAX record at byte {start} of its block")
        if key.startswith(b"GNU.sparse.") or key == b"SCHILY.realsize":
            values[_SPARSE] = value if key == _SPARSE_NAME else values.get(_SPARSE, b"")
        if key == b"size" and value and not (value.isdigit() and len(value) <= _LONGEST_NUMBER):
            raise damage(name, at, f"PAX size {value!r} is not a size")
        if key in (b"path", b"linkpath", b"size"):
            values[key] = value
        start = end
    if body[start:].strip(b"\0"):
        raise damage(name, at, f"malformed PAX record at byte {start} of its block")
    return values


_NO_TAR = ": the file is no tar, or damaged from its first byte on"


def check_header(header: bytes, name: str, at: int) -> None:
    """Check that a header is 512 bytes with a valid checksum, over signed or unsigned characters.

    Raises:
        TarDamage: It is not.
    """
    if len(header) < BLOCK:
        if not header and at == 0:
            raise damage(name, at, "the file is empty, not even an empty tar", is_cut=True)
        reason = (
            f"cut within a header, after {len(header)} bytes{_NO_TAR if at == 0 else ''}"
            if header
            else "the end blocks are missing: the file was cut here"
        )
        raise damage(name, at, reason, is_cut=True)
    try:
        stored = _number(header[148:156])
    except ValueError:
        stored = -1
    rest = 256 - sum(header[148:156])  # the checksum field itself counts as eight spaces
    if header.isascii():
        # The low half of Adler-32 is 1 + the sum of bytes mod 65521, which 512 ASCII bytes cannot reach.
        # Ten times as fast as sum().
        expected = (zlib.adler32(header) & 0xFFFF) - 1 + rest
        matches = stored == expected
    else:
        expected = sum(header) + rest
        # Historical writers summed signed characters: each byte above 127 then counts 256 less.
        matches = stored == expected or stored == expected - 256 * sum(
            byte > 127 for byte in header[:148] + header[156:]
        )
    if not matches:
        reason = (
            "is gzip, not a tar: unwrap it first"
            if at == 0 and header[:2] == b"\x1f\x8b"
            else f"header checksum mismatch{_NO_TAR if at == 0 else ''}"
        )
        raise damage(name, at, reason)


def member_size(header: bytes, name: str, at: int) -> int:
    """Return the size field in bytes.

    Raises:
        TarDamage: The field is neither octal nor a positive base-256 number.
    """
    digits = header[124:135]
    try:
        return int(digits, 8) if digits.isdigit() and header[135] in b"\0 " else _number(header[124:136])
    except ValueError as error:
        raise damage(name, at, f"size field {header[124:136]!r} is not a size") from error


def _number(field: bytes) -> int:
    """Parse a field of octal text, or of a big-endian number if its first bit is set.

    Raises:
        ValueError: It is something else, or negative.
    """
    if field[0] & 0x80:
        if field[0] & 0x40:
            raise ValueError("negative")
        return int.from_bytes(field, "big") ^ (0x80 << 8 * (len(field) - 1))
    digits = field.split(b"\0", 1)[0].strip(b" ")
    if digits and not digits.isdigit():
        raise ValueError("not octal")
    return int(digits, 8) if digits else 0


def full_name(header: bytes) -> bytes:
    """Return the name in the header itself, with its USTAR prefix."""
    raw = header[:100].split(b"\0", 1)[0]
    if header[257:262] != b"ustar" or header[262] == 32:  # GNU tar stores times in place of the prefix
        return raw
    end = 476 if header[508:512] == b"tar\0" else 500  # star stores times at the end of it
    prefix = header[345:end].split(b"\0", 1)[0]
    return prefix + b"/" + raw if prefix else raw


def decode_name(raw: bytes) -> tuple[str, str | None]:
    """Return a stored name as text without leading ``./``, and the reason why it cannot name a file.

    The reason is None if it can.
    The text never has surrogates. Bytes that are not UTF-8 become backslash escapes, which another name may
    contain as plain text.
    """
    if raw.startswith(b"./"):
        raw = _LEADING_DOTS.sub(b"", raw)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return raw.decode("utf-8", "backslashreplace"), f"the name is not UTF-8: {raw[:256]!r}"
    return text, "the name is empty" if not text else "the name holds a NUL" if "\0" in text else None


def padded(size: int) -> int:
    """Return ``size`` rounded up to a multiple of 512."""
    return (size + BLOCK - 1) // BLOCK * BLOCK


def damage(name: str, at: int, reason: str, is_cut: bool = False) -> TarDamage:
    """Return the error for damage at a byte offset of the tar called ``name``."""
    return TarDamage(
        f"{name}: byte {at}: {reason if len(reason) <= 1000 else reason[:1000] + '…'}", at, is_cut
    )


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
