"""Tars, at the level of headers: those of members parsed and checked, and a writer of plain USTAR tars.

A header of 512 bytes is parsed with the extended headers (PAX, GNU) before it. The writer is deterministic:
the same members give the same bytes. `mm_assets.formats.tar.scan` finds the members of a tar, and damage;
`mm_assets.formats.tar.spool` has local copies of packed and remote ones.
"""

from __future__ import annotations

import os
import re
import tarfile
import zlib
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import IO, Any, NamedTuple

from mm_assets.model.errors import DAMAGED_TAR, TRUNCATED_TAR, MmAssetsError

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


MAX_NAME = 100  # bytes; longer names need tar extensions, which wids and DALI do not read
MAX_MEMBER = 8 << 30  # bytes; eleven octal digits
END_BLOCKS = 2 * BLOCK

_MODE_UID_GID = b"0000644\x000000000\x000000000\x00"
_MTIME = b"00000000000\x00"
_REST = (b"0" + bytes(100) + b"ustar\x0000").ljust(BLOCK - 156, b"\x00")  # type, link name, magic, version
# The checksum field itself counts as spaces.
_CONSTANT_SUM = sum(_MODE_UID_GID) + sum(_MTIME) + sum(_REST) + 8 * ord(" ")
_PADDING = bytes(BLOCK)
_COPIED_AT_ONCE = 1 << 20  # bytes
_MAX_BUFFERS = os.sysconf("SC_IOV_MAX")

# Anything with a contiguous buffer (bytes, memoryview, pa.Buffer; Python 3.11 has no type for it), or a
# `FileRange`.
Payload = Any


class FileRange(NamedTuple):
    """A payload in an open file; offset and size in bytes. The kernel copies it, so it uses no memory."""

    descriptor: int
    offset: int
    size: int


def add_member(file: IO[bytes], name: str, size: int, payload: IO[bytes]) -> None:
    """Append a member of any name and size, in PAX format, without end blocks.

    Raises:
        EOFError: the payload is shorter.
    """
    info = tarfile.TarInfo(name)
    info.size = size
    file.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict"))
    left = size
    while left > 0:
        block = payload.read(min(left, _COPIED_AT_ONCE))
        if not block:
            raise EOFError(f"it ends {left} bytes early")
        file.write(block)
        left -= len(block)
    file.write(_PADDING[: -size % BLOCK])


def end_of_headers(descriptor: int, at: int, name: str) -> int:
    """Return where the payload of a member begins, whose first header, maybe an extended one, is at ``at``.

    Raises:
        TarDamage: there is no header.
    """
    while True:
        header = os.pread(descriptor, BLOCK, at)
        check_header(header, name, at)
        at += BLOCK
        if header[156] not in EXTENDED_KINDS:
            return at
        at += padded(member_size(header, name, at))


def copy_without(descriptor: int, ranges: Iterable[tuple[int, int]], file: IO[bytes]) -> None:
    """Write all bytes of an open tar but those of some ranges, which do not overlap, in ascending order."""
    at, size = 0, os.fstat(descriptor).st_size
    for start, end in (*ranges, (size, size)):
        while at < start and (block := os.pread(descriptor, min(_COPIED_AT_ONCE, start - at), at)):
            file.write(block)
            at += len(block)
        at = end


class TarWriter:
    """Writer of groups of members to a tar at ``path``, which is created or truncated.

    Times and owners are 0, modes 0644, names ASCII. As a context manager it writes the end blocks only if the
    block ends without an exception, so an abandoned tar reads as damaged. Removing or renaming the file is up
    to the caller. ``groups`` and ``bytes`` count what is in the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.groups = 0
        self.bytes = 0
        self._starts: list[int] = []
        self._end = 0  # of the last group; `bytes` counts the end blocks as well
        self._failed = False
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)

    def write_group(self, members: Sequence[tuple[str, Payload]]) -> None:
        """Append one group of members, such as a sample.

        Args:
            members: (name, payload) pairs, written in this order. Payloads go to the kernel without a copy.

        Raises:
            ValueError: There are no members, a name occurs twice, a name is not 1 to 100 ASCII bytes without
                NUL, or a payload has 8 GiB or more. Nothing has been written then.
            OSError: The disk refuses; the tar can only be abandoned.
        """
        if self._fd < 0 or self._failed:
            raise ValueError("the tar is closed, or a write to it failed")
        if not members or len({name for name, _ in members}) != len(members):
            raise ValueError(f"a sample has members of different names, not {[name for name, _ in members]}")
        buffers: list[bytes | memoryview] = []
        padding = b""
        total = 0
        for name, payload in members:
            view = payload if isinstance(payload, FileRange) else memoryview(payload).cast("B")
            size = view.size if isinstance(view, FileRange) else len(view)
            header = _header(name, size)
            buffers.append(padding + header if padding else header)
            if isinstance(view, FileRange):
                self._write(buffers)
                self._copy(view)
                buffers = []
            elif size:
                buffers.append(view)
            padding = _PADDING[: -size % BLOCK]
            total += BLOCK + size + len(padding)
        if padding:
            buffers.append(padding)
        self._write(buffers)
        self._starts.append(self._end)
        self._end += total
        self.bytes = self._end
        self.groups += 1

    @property
    def offsets(self) -> list[int]:
        """Byte offsets of the groups' first headers, and of the end blocks."""
        return [*self._starts, self._end]

    def close(self) -> None:
        """Write the end blocks and close the file; a second call does nothing.

        Raises:
            ValueError: A write has failed before.
        """
        if self._fd < 0:
            return
        if self._failed:
            self.abort()
            raise ValueError("a write failed: the tar is not complete")
        try:
            self._write([bytes(END_BLOCKS)])
            self.bytes += END_BLOCKS
        finally:
            self.abort()

    def abort(self) -> None:
        """Close the file as it is, without end blocks."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> TarWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def _copy(self, source: FileRange) -> None:
        at, end = source.offset, source.offset + source.size
        try:
            while at < end:
                if not (copied := os.sendfile(self._fd, source.descriptor, at, end - at)):
                    raise OSError(f"the file ends {end - at} bytes before the end of a payload")
                at += copied
        except BaseException:
            self._failed = True
            raise

    def _write(self, buffers: list[bytes | memoryview]) -> None:
        at = 0
        try:
            while at < len(buffers):
                written = os.writev(self._fd, buffers[at : at + _MAX_BUFFERS])
                while at < len(buffers) and written >= len(buffers[at]):
                    written -= len(buffers[at])
                    at += 1
                if written:
                    buffers[at] = memoryview(buffers[at])[written:]
        except BaseException:
            self._failed = True
            raise


def _header(name: str, size: int) -> bytes:
    raw = name.encode("ascii", "replace")
    if not name.isascii() or not 0 < len(raw) <= MAX_NAME or b"\0" in raw:
        raise ValueError(f"member name {name!r} is not 1 to {MAX_NAME} ASCII bytes without NUL")
    if size >= MAX_MEMBER:
        raise ValueError(f"member {name!r} has {size} bytes; a member is smaller than {MAX_MEMBER}")
    digits = b"%011o\x00" % size
    # The low half of Adler-32 is 1 + the sum of so few bytes, and faster than sum().
    checksum = _CONSTANT_SUM + (zlib.adler32(raw + digits) & 0xFFFF) - 1
    return b"".join((raw.ljust(100, b"\x00"), _MODE_UID_GID, digits, _MTIME, b"%06o\x00 " % checksum, _REST))
