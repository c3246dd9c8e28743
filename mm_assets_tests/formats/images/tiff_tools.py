"""A TIFF writer and reader for tests, written apart from the code under test."""

from __future__ import annotations

import io
import random
import struct
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

CODES = {1: "B", 2: "s", 3: "H", 4: "I", 5: "II", 7: "s", 8: "h", 12: "d", 13: "I", 16: "Q", 18: "Q"}
SIZES = {
    1: 1,
    2: 1,
    3: 2,
    4: 4,
    5: 8,
    6: 1,
    7: 1,
    8: 2,
    9: 4,
    10: 8,
    11: 4,
    12: 8,
    13: 4,
    16: 8,
    17: 8,
    18: 8,
}
POINTERS = {330, 34665, 34853, 40965}
PAYLOADS = {273: 279, 324: 325, 513: 514}


@dataclass
class Directory:
    """Tags as (type, raw bytes in file order), payload pieces by offsets tag, directories by pointer tag."""

    tags: dict[int, tuple[int, bytes]]
    payload: dict[int, list[bytes]] = field(default_factory=dict)
    children: dict[int, list[list[Directory]]] = field(default_factory=dict)


def read_tiff(data: bytes, aligned: bool = False) -> list[Directory]:
    """All directories; `aligned` asserts that values lie on even offsets."""
    order = "<" if data[:2] == b"II" else ">"
    big = struct.unpack(order + "H", data[2:4])[0] == 43
    first = struct.unpack_from(order + ("Q" if big else "I"), data, 8 if big else 4)[0]
    return _chain(data, order, big, first, aligned)


def _chain(
    data: bytes, order: str, big: bool, offset: int, aligned: bool, limit: int = 1000
) -> list[Directory]:
    pointer, width = ("Q", 8) if big else ("I", 4)
    found: list[Directory] = []
    while offset and len(found) < limit:
        number = struct.unpack_from(order + ("Q" if big else "H"), data, offset)[0]
        at = offset + (8 if big else 2)
        directory = Directory({})
        for _ in range(number):
            tag, kind, count = struct.unpack_from(order + "HH" + pointer, data, at)
            size = SIZES[kind] * count
            place = at + 4 + width
            if size > width:
                place = struct.unpack_from(order + pointer, data, place)[0]
                assert place % 2 == 0 or not aligned
            directory.tags[tag] = (kind, data[place : place + size])
            assert len(directory.tags[tag][1]) == size
            at += 4 + 2 * width
        for tag in PAYLOADS.keys() & directory.tags.keys():
            pairs = zip(numbers(directory, order, tag), numbers(directory, order, PAYLOADS[tag]), strict=True)
            directory.payload[tag] = [data[start : start + length] for start, length in pairs]
        for tag in POINTERS & directory.tags.keys():
            # Only SubIFDs chain; what follows other directories is noise.
            heads = numbers(directory, order, tag)
            most = 1000 if tag == 330 else 1
            directory.children[tag] = [_chain(data, order, big, head, aligned, most) for head in heads]
        found.append(directory)
        offset = struct.unpack_from(order + pointer, data, at)[0]
    return found


def numbers(directory: Directory, order: str, tag: int) -> tuple[int, ...]:
    kind, raw = directory.tags[tag]
    return struct.unpack(f"{order}{len(raw) // SIZES[kind]}{CODES[kind]}", raw)


def assert_same(source: Directory, split: Directory) -> None:
    """Every tag but offsets equal in type and bytes, payload and pointed directories equal."""
    assert split.tags.keys() == source.tags.keys()
    for tag, value in source.tags.items():
        if tag not in POINTERS and tag not in PAYLOADS:
            assert split.tags[tag] == value, tag
    assert split.payload == source.payload
    assert split.children.keys() == source.children.keys()
    for tag, chains in source.children.items():
        assert [len(chain) for chain in split.children[tag]] == [len(chain) for chain in chains]
        for chain, other in zip(chains, split.children[tag], strict=True):
            for one, two in zip(chain, other, strict=True):
                assert_same(one, two)


@dataclass
class Page:
    """One directory to write: values by tag as (type, *values or bytes), payload pieces, directories it
    points at.
    """

    tags: dict[int, tuple[Any, ...]]
    payload: dict[int, list[bytes]] = field(default_factory=dict)
    children: dict[int, list[list[Page]]] = field(default_factory=dict)
    offsets_type: int = 0
    gap: int = 0


def write_tiff(pages: list[Page], order: str = "<", big: bool = False) -> bytes:
    mark = b"II" if order == "<" else b"MM"
    out = bytearray(
        mark + (struct.pack(order + "HHHQ", 43, 8, 0, 0) if big else struct.pack(order + "HI", 42, 0))
    )
    link = 8 if big else 4
    for page in pages:
        link = _write_page(out, page, order, big, link)
    return bytes(out)


def _write_page(out: bytearray, page: Page, order: str, big: bool, link: int) -> int:
    pointer, width = ("Q", 8) if big else ("I", 4)
    wide = page.offsets_type or (16 if big else 4)
    tags = dict(page.tags.items())
    for tag, pieces in page.payload.items():
        places = []
        for piece in pieces:
            out += b"\xee" * page.gap
            places.append(len(out) if piece else 0)
            out += piece
        tags[tag] = (wide, *places)
        tags.setdefault(PAYLOADS[tag], (4, *map(len, pieces)))
    for tag, chains in page.children.items():
        places = []
        for chain in chains:
            slot = len(out)
            out += bytes(width)
            inner = slot
            for child in chain:
                inner = _write_page(out, child, order, big, inner)
            places.append(struct.unpack_from(order + pointer, out, slot)[0])
        tags[tag] = (16 if big else 4, *places)
    entries = []
    for tag, (kind, *values) in sorted(tags.items()):
        if kind in (2, 7):
            raw, count = values[0], len(values[0])
        else:
            raw = b"".join(
                struct.pack(order + CODES[kind], *(v if isinstance(v, tuple) else (v,))) for v in values
            )
            count = len(values)
        if len(raw) > width:
            out += bytes(len(out) % 2)
            place = len(out)
            out += raw
            raw = struct.pack(order + pointer, place)
        entries.append(struct.pack(order + "HH" + pointer, tag, kind, count) + raw.ljust(width, b"\0"))
    out += bytes(len(out) % 2)
    struct.pack_into(order + pointer, out, link, len(out))
    out += struct.pack(order + ("Q" if big else "H"), len(entries)) + b"".join(entries)
    out += bytes(width)
    return len(out) - width


def grey_page(width: int, height: int, pixels: bytes, rows: int | None = None, **more: Any) -> Page:
    """Uncompressed 8-bit grey strips."""
    rows = rows or height
    tags: dict[int, tuple[Any, ...]] = {
        256: (4, width),
        257: (4, height),
        258: (3, 8),
        259: (3, 1),
        262: (3, 1),
        277: (3, 1),
        278: (4, rows),
    }
    step = rows * width
    pieces = [pixels[at : at + step] for at in range(0, len(pixels), step)]
    return Page(tags, {273: pieces}, **more)


def tiff_of(pages: int, **options: Any) -> bytes:
    frames = [Image.effect_noise((40 + n, 30), 50 + n).convert("RGB") for n in range(pages)]
    out = io.BytesIO()
    frames[0].save(out, "TIFF", save_all=True, append_images=frames[1:], compression="jpeg", **options)
    return out.getvalue()


BYTE_ORDERS = [("<", False), (">", False), ("<", True), (">", True)]


def noise(mode: str, width: int, height: int, seed: int) -> Image.Image:
    rng = random.Random(seed)
    bands = {"1": 1, "L": 1, "P": 1, "LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4, "I;16": 2}
    if mode == "F":
        return Image.frombytes(
            "F",
            (width, height),
            struct.pack(f"<{width * height}f", *(rng.gauss(0, 9) for _ in range(width * height))),
        )
    if mode == "1":
        return Image.frombytes("L", (width, height), rng.randbytes(width * height)).convert("1")
    if mode == "P":
        return Image.frombytes("RGB", (width, height), rng.randbytes(3 * width * height)).quantize(200)
    return Image.frombytes(mode, (width, height), rng.randbytes(bands[mode] * width * height))


def save(frames: list[Image.Image], **options: object) -> bytes:
    out = io.BytesIO()
    frames[0].save(out, "TIFF", save_all=True, append_images=frames[1:], **options)
    return out.getvalue()


def many_tiny_directories() -> bytes:
    out = bytearray(b"II*\0\x08\0\0\0")
    for _ in range(70_000):
        out += struct.pack("<HHHIII", 1, 256, 4, 1, 1, len(out) + 18)
    return bytes(out)


def seeds() -> list[bytes]:
    exif = Page({36867: (2, b"2024:01:02 03:04:05\0")}, {}, {40965: [[Page({1: (2, b"R98\0")})]]})
    pages = [grey_page(9, 9, bytes(81), 4, children={34665: [[exif]], 330: [[grey_page(2, 2, b"abcd")]]})]
    pages.append(
        Page({256: (3, 20), 257: (3, 9), 258: (3, 8), 322: (3, 16), 323: (3, 16)}, {324: [bytes(256)] * 2})
    )
    found = [write_tiff(pages, order, big) for order, big in BYTE_ORDERS]
    found.append(save([noise("RGB", 40, 60, seed) for seed in (1, 2)], compression="jpeg"))
    found.append(save([noise("P", 9, 9, seed) for seed in (1, 2)]))
    return found


SEEDS = seeds()
