"""One 512-byte tar header, and the extended headers before it: what they say, checked."""

from __future__ import annotations

import re
import zlib

from mm_assets.interleaved.errors import MmAssetsError
from mm_assets.interleaved.faults import DAMAGED_TAR, TRUNCATED_TAR

BLOCK = 512

_PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK = b"xgLK"
_SOLARIS_PAX = b"X"[0]
_SPARSE, _SPARSE_NAME = b"GNU.sparse", b"GNU.sparse.name"
EXTENDED_KINDS = b"xXgLK"
_LEADING_DOTS = re.compile(rb"\A(?:\./+)+")
_LONGEST_NUMBER = 20  # digits; beyond 4,300 Python refuses to convert


class TarDamage(MmAssetsError, ValueError):
    """The tar is cut, corrupt, or holds what cannot be read exactly; the message names file, byte offset and
    reason.

    ``at`` is that offset, of the file that is damaged (the packed one where gzip is). ``is_cut`` where the
    file just ends too early. ``kind`` is the class of the fault.
    """

    def __init__(self, message: str, at: int = 0, is_cut: bool = False) -> None:
        super().__init__(message)
        self.at = at
        self.is_cut = is_cut

    @property
    def kind(self) -> str:
        return TRUNCATED_TAR if self.is_cut else DAMAGED_TAR


class Extended:
    """What extended headers said about the member to come (as stored), and global PAX values for all that
    follow.

    ``at`` is the byte offset of the first such header, -1 when there was none.
    """

    __slots__ = ("at", "own", "shared", "_kinds")

    def __init__(self) -> None:
        self.shared: dict[bytes, bytes] = {}
        self.clear()

    def clear(self) -> None:
        self.at = -1
        self.own: dict[bytes, bytes] = {}
        self._kinds: set[int] = set()

    def add(self, kind: int, body: bytes, name: str, at: int) -> None:
        if kind == _PAX_GLOBAL:
            self.shared.update(_pax_values(body, name, at))
            return
        kind = _PAX if kind == _SOLARIS_PAX else kind
        if kind in (_LONG_NAME, _LONG_LINK):
            values = {b"path" if kind == _LONG_NAME else b"linkpath": body.split(b"\0", 1)[0]}
        else:
            values = _pax_values(body, name, at)
        # Readers disagree on which of two says the truth, so a tar that needs them to agree is refused.
        if kind in self._kinds or any(self.own.get(key, value) != value for key, value in values.items()):
            raise damage(name, at, "two extended headers contradict each other about one member")
        self._kinds.add(kind)
        self.own.update(values)
        self.at = at if self.at < 0 else self.at

    def take_name(self, raw: bytes) -> bytes:
        return self._value(b"path") or raw

    def take_link(self, raw: bytes) -> bytes:
        return self._value(b"linkpath") or raw

    def take_size(self, size: int) -> int:
        value = self._value(b"size")
        return int(value) if value else size

    @property
    def sparse_name(self) -> bytes | None:
        """Where the bytes of the member to come are a map and pieces of a file: the file's name, empty if
        only its header has it.
        """
        return self._value(_SPARSE)

    def _value(self, key: bytes) -> bytes | None:
        return self.own.get(key, self.shared.get(key))  # an empty value of its own takes a global one back


def _pax_values(body: bytes, name: str, at: int) -> dict[bytes, bytes]:
    """The PAX keywords that place a member, and `_SPARSE` where some say it is sparse.

    Raises `TarDamage` for malformed records.
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
    """Raise `TarDamage` unless these are 512 bytes whose checksum is right, as signed or unsigned characters."""
    if len(header) < BLOCK:
        if not header and at == 0:
            raise damage(name, at, "the file is empty, not even an empty tar", is_cut=True)
        cut = (
            f"cut within a header, after {len(header)} bytes{_NO_TAR if at == 0 else ''}"
            if header
            else "the end blocks are missing: the file was cut here"
        )
        raise damage(name, at, cut, is_cut=True)
    try:
        stored = _number(header[148:156])
    except ValueError:
        stored = -1
    rest = 256 - sum(header[148:156])  # the field counts as eight spaces
    if header.isascii():
        # Adler-32's low half is 1 + the sum of bytes mod 65521, which 512 ASCII bytes cannot reach. 10x
        # sum()'s speed.
        expected = (zlib.adler32(header) & 0xFFFF) - 1 + rest
        matches = stored == expected
    else:
        expected = sum(header) + rest
        matches = stored == expected or stored == expected - 256 * _count_high(header[:148] + header[156:])
    if not matches:
        what = (
            "is gzip, not a tar: unwrap it first"
            if at == 0 and header[:2] == b"\x1f\x8b"
            else f"header checksum mismatch{_NO_TAR if at == 0 else ''}"
        )
        raise damage(name, at, what)


def _count_high(part: bytes) -> int:
    return sum(
        byte > 127 for byte in part
    )  # historical writers summed signed characters, so these count 256 less


def size_of(header: bytes, name: str, at: int) -> int:
    """The size field in bytes. Raises `TarDamage` for what is neither octal nor a positive base-256 number."""
    digits = header[124:135]
    try:
        return int(digits, 8) if digits.isdigit() and header[135] in b"\0 " else _number(header[124:136])
    except ValueError as error:
        raise damage(name, at, f"size field {header[124:136]!r} is not a size") from error


def _number(field: bytes) -> int:
    """A field of octal text, or big-endian if its first bit is set.

    Raises ``ValueError`` for others and negatives.
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
    """The header's own name with its USTAR prefix."""
    raw = header[:100].split(b"\0", 1)[0]
    if header[257:262] != b"ustar" or header[262] == 32:  # GNU keeps times where USTAR has the prefix
        return raw
    end = 476 if header[508:512] == b"tar\0" else 500  # so does star, further back
    prefix = header[345:end].split(b"\0", 1)[0]
    return prefix + b"/" + raw if prefix else raw


def decode_name(raw: bytes) -> tuple[str, str | None]:
    """A stored name as text without leading ``./``, and why no file may be known by it (else None).

    Never surrogates: what is not UTF-8 is spelled with backslash escapes, which another name may spell as
    well.
    """
    if raw.startswith(b"./"):
        raw = _LEADING_DOTS.sub(b"", raw)
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return raw.decode("utf-8", "backslashreplace"), f"the name is not UTF-8: {raw[:256]!r}"
    return text, "the name is empty" if not text else "the name holds a NUL" if "\0" in text else None


def padded(size: int) -> int:
    """``size`` up to the next multiple of 512."""
    return (size + BLOCK - 1) // BLOCK * BLOCK


def damage(name: str, at: int, what: str, is_cut: bool = False) -> TarDamage:
    """The error for something wrong at a byte offset of the tar called ``name``."""
    return TarDamage(f"{name}: byte {at}: {what if len(what) <= 1000 else what[:1000] + '…'}", at, is_cut)
