"""Tars made byte by byte, so that they may be wrong in any way; no code of the project or of `tarfile` has a
say in them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

BLOCK = 512
END = bytes(2 * BLOCK)


@dataclass(frozen=True)
class Entry:
    """A piece of a tar: ``blocks`` as they lie in the file; ``name`` and ``data`` when a reader shall find a
    member in them.
    """

    blocks: bytes
    name: str | None = None
    data: bytes = b""


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


def header(
    name: bytes,
    size: int = 0,
    kind: bytes = b"0",
    *,
    size_field: bytes | None = None,
    link: bytes = b"",
    magic: bytes = b"ustar\x0000",
    prefix: bytes = b"",
    is_signed: bool = False,
    checksum: int | None = None,
) -> bytes:
    """One 512-byte header. ``is_signed`` sums signed characters, as some historical writers did."""
    fields = [
        name.ljust(100, b"\0"),
        b"0000644\0" + b"0000000\0" * 2,
        b"%011o\0" % size if size_field is None else size_field,
        b"%011o\0" % 1_600_000_000,
        b" " * 8,
        kind,
        link.ljust(100, b"\0"),
        magic,
        bytes(80),
        prefix.ljust(155, b"\0"),
        bytes(12),
    ]
    block = b"".join(fields)
    assert len(block) == BLOCK
    if checksum is None:
        checksum = sum(byte - 256 if is_signed and byte > 127 else byte for byte in block)
    return block[:148] + b"%06o\0 " % checksum + block[156:]


def file(name: str | bytes, data: Any, kind: bytes = b"0", **fields: Any) -> Entry:
    """A regular member; data that is no bytes is written as JSON."""
    body = data if isinstance(data, bytes) else json.dumps(data, ensure_ascii=False).encode()
    raw = name.encode() if isinstance(name, str) else name
    known = name.removeprefix("./") if isinstance(name, str) else name.decode("utf-8", "backslashreplace")
    return Entry(header(raw, len(body), kind, **fields) + padded(body), known, body)


def document(key: str = "bad", /, **fields: Any) -> Entry:
    """The json of a sample with one text and no image, unless ``fields`` say otherwise."""
    return file(f"{key}.json", {"texts": ["t"], "images": [None], **fields})


def link(name: str, target: str, kind: bytes = b"2", data: bytes = b"") -> Entry:
    """A symbolic (``2``) or hard (``1``) link; ``data`` is what its target holds."""
    return Entry(header(name.encode(), 0, kind, link=target.encode()), name, data)


def special(name: str, kind: bytes) -> Entry:
    """A folder (``5``), pipe (``6``), device (``3``, ``4``)."""
    return Entry(header(name.encode(), 0, kind))


def pax(values: dict[str, str | bytes], kind: bytes = b"x") -> Entry:
    """An extended header for the member that follows (``x``) or for all of them (``g``)."""
    records = b"".join(
        _record(key.encode(), value.encode() if isinstance(value, str) else value)
        for key, value in values.items()
    )
    return pax_body(records, kind)


def pax_body(body: bytes, kind: bytes = b"x") -> Entry:
    """An extended header whose records are these bytes, right or wrong."""
    return Entry(header(b"PaxHeaders/x", len(body), kind) + padded(body))


def gnu_name(name: str, kind: bytes = b"L") -> Entry:
    """GNU's header for a long name (``L``) or link target (``K``) of the member that follows."""
    body = name.encode() + b"\0"
    return Entry(header(b"././@LongLink", len(body), kind, magic=b"ustar  \0") + padded(body))


def named(name: str, *parts: Entry) -> Entry:
    """Extended headers and the member they are about, as one entry called ``name``."""
    return Entry(b"".join(part.blocks for part in parts), name, parts[-1].data)


def tar(entries: Iterable[Entry], end: bytes = END) -> bytes:
    return b"".join(entry.blocks for entry in entries) + end


def _record(key: bytes, value: bytes) -> bytes:
    length = len(key) + len(value) + 3
    total = length + len(str(length))
    total = length + len(str(total))
    return b"%d %s=%s\n" % (total, key, value)
