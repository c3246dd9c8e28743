"""Completeness check of image bytes by their structure: microseconds, without decoding or copying."""

from __future__ import annotations

import struct
from collections.abc import Callable
from operator import add
from typing import Final

from .errors import ImageError
from .tiff_ifd import (
    TYPE_SIZES,
    Entry,
    Layout,
    as_view,
    entry_number,
    integers,
    iter_directories,
    iter_entries,
    read_header,
)
from .tiff_tags import PAYLOADS

# Far above real files; they bound the work on malicious ones.
_MAX_CHUNKS: Final = 1 << 16
_MAX_BLOCKS: Final = 1 << 17

_UNCOMPRESSED_BMP: Final = frozenset({0, 3, 6})  # plain, and with colour masks
_BMP_FILE_HEADER: Final = 14
_PAYLOAD_TAGS: Final = frozenset(tag for pair in PAYLOADS for tag in pair)

_chunk_be: Final = struct.Struct(">I4s").unpack_from
_chunk_le: Final = struct.Struct("<4sI").unpack_from
_u32le: Final = struct.Struct("<I").unpack_from
_u16le_pair: Final = struct.Struct("<HH").unpack_from
_u16le_four: Final = struct.Struct("<HHHH").unpack_from
# Width, height, planes, bits, compression, bytes of pixels.
_bmp_info: Final = struct.Struct("<iiHHII").unpack_from


def looks_whole(data: bytes | bytearray | memoryview, kind: str) -> bool:
    """Return True if an image ends where its structure says, with nothing missing or left over.

    False is a suspicion, not a verdict: extra bytes after the image or an omitted end marker do no harm, and
    only decoding can tell. True means that nothing was cut off; pixels may still be damaged.

    Args:
        data: The image file.
        kind: Its format, as returned by `probe`.
    """
    try:
        return _CHECKS[kind](as_view(data))
    except (ImageError, IndexError, struct.error):
        return False


def _jpeg(view: memoryview) -> bool:
    return bytes(view[-2:]) == b"\xff\xd9"  # never within a scan, where 0xFF is escaped


def _png(view: memoryview) -> bool:
    at, end, has_pixels = 8, len(view) - 12, False
    for _ in range(_MAX_CHUNKS):
        if at > end:
            return False
        length, name = _chunk_be(view, at)
        at += 12 + length
        if name == b"IDAT":
            has_pixels = True
        elif name == b"IEND":
            return has_pixels and at == len(view)
    return False


def _webp(view: memoryview) -> bool:
    end = 8 + _u32le(view, 4)[0]
    if not end <= len(view) <= end + (end & 1):
        return False
    at, has_pixels = 12, False
    for _ in range(_MAX_CHUNKS):
        if at + 8 > end:
            return has_pixels and end <= at <= end + 1  # some writers omit the padding of the last chunk
        name, length = _chunk_le(view, at)
        has_pixels = has_pixels or name in (b"VP8 ", b"VP8L", b"ANMF")
        at += 8 + length + (length & 1)
    return False


def _gif(view: memoryview) -> bool:
    screen_width, screen_height = _u16le_pair(view, 6)
    at, has_pixels = 13 + _gif_colours(view[10]), False
    for _ in range(_MAX_BLOCKS):
        kind = view[at]
        if kind == 0x3B:
            return has_pixels and at + 1 == len(view)
        if kind == 0x2C:
            left, top, width, height = _u16le_four(view, at + 1)
            if left + width > screen_width or top + height > screen_height:
                return False  # decoders enlarge the screen, so its size proves nothing
            has_pixels = True
            at += 11 + _gif_colours(view[at + 9])
        elif kind == 0x21:
            at += 2
        else:
            return False
        for _ in range(_MAX_BLOCKS):
            size = view[at]
            at += size + 1
            if size == 0:
                break
    return False


def _gif_colours(flags: int) -> int:
    """Return the bytes of the colour table that the flags announce."""
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _bmp(view: memoryview) -> bool:
    start = _u32le(view, 10)[0]
    header = _u32le(view, _BMP_FILE_HEADER)[0]
    if header == 12:
        width, height, _, bits = _u16le_four(view, 18)
        compression = nbytes = 0
    else:
        width, height, _, bits, compression, nbytes = _bmp_info(view, 18)
    if compression in _UNCOMPRESSED_BMP:
        nbytes = (width * bits + 31) // 32 * 4 * abs(height)
    return nbytes > 0 and start >= _BMP_FILE_HEADER + header and start + nbytes <= len(view)


def _tiff(view: memoryview) -> bool:
    layout, first = read_header(view)
    # The lists of valid directories do not overlap, so together they fit into the file; this bounds the work.
    room = len(view)
    for directory in iter_directories(view, layout, first):
        entries = _payload_entries(view, layout, directory)
        has_pixels = False
        for offsets_tag, lengths_tag in PAYLOADS:
            if (offsets := entries.get(offsets_tag)) is None:
                continue
            lengths = entries.get(lengths_tag)
            if lengths is None or not 0 < offsets.values == lengths.values <= room:
                return False
            room -= offsets.values
            starts, sizes = (
                integers(view, layout, directory, offsets),
                integers(view, layout, directory, lengths),
            )
            if min(sizes) == 0 or max(map(add, starts, sizes)) > len(view):
                return False
            has_pixels = True
        if not has_pixels:
            return False
    return True


def _payload_entries(view: memoryview, layout: Layout, directory: int) -> dict[int, Entry]:
    """Return the entries that locate pixels.

    Raises:
        ImageError: The values of any entry lie outside the file.
    """
    end, width = len(view), layout.pointer.size
    found: dict[int, Entry] = {}
    for row, (tag, kind, values, field) in enumerate(
        iter_entries(view, layout, directory, entry_number(view, layout, directory))
    ):
        size = TYPE_SIZES.get(kind, 0) * values
        if size > width and field + size > end:
            raise ImageError(f"values of TIFF tag {tag} lie outside the {end} bytes")
        if tag in _PAYLOAD_TAGS:
            found[tag] = Entry(row, tag, kind, values, field)
    return found


_CHECKS: Final[dict[str, Callable[[memoryview], bool]]] = {
    "jpg": _jpeg, "png": _png, "webp": _webp, "gif": _gif, "bmp": _bmp, "tiff": _tiff,
}  # fmt: skip
