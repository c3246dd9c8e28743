"""Headers and records of tars, byte by byte."""

from __future__ import annotations

import tarfile


def header(name: bytes, size: int, kind: bytes = b"0", **fields: bytes) -> bytes:
    """A header made by hand: ``at_<offset>=bytes`` overwrites a field before the checksum is taken."""
    raw = bytearray(tarfile.TarInfo("x").tobuf(tarfile.USTAR_FORMAT))
    raw[:100] = name.ljust(100, b"\0")
    raw[124:136] = b"%011o\0" % size
    raw[156:157] = kind
    for key, value in fields.items():
        at = int(key.removeprefix("at_"))
        raw[at : at + len(value)] = value
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw)
    return bytes(raw)


END = bytes(1024)


def pax(*records: bytes, kind: bytes = b"x") -> bytes:
    body = b"".join(records)
    return header(b"pax", len(body), kind) + body + bytes(-len(body) % 512)


def record(key: str, value: str | bytes) -> bytes:
    rest = b" " + key.encode() + b"=" + (value.encode() if isinstance(value, str) else value) + b"\n"
    length = len(rest)
    while length != len(rest) + len(str(length)):
        length = len(rest) + len(str(length))
    return str(length).encode() + rest
