"""What every client needs of an image: that Pillow opens it. No pixel is decoded."""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Callable
from typing import Final

from .decode import pillow_image
from .errors import DecompressionBomb, ImageError
from .tiff_ifd import TYPE_SIZES, Entry, as_view, entry_number, integers, iter_entries, read_header
from .tiff_tags import (
    BITS_PER_SAMPLE,
    COMPRESSION,
    HEIGHT,
    ORIENTATION,
    PAYLOADS,
    PHOTOMETRIC,
    PLANAR,
    ROWS_PER_STRIP,
    SAMPLES_PER_PIXEL,
    STRIP_OFFSETS,
    WIDTH,
)

_MAX_SEGMENTS: Final = 256
_u16be: Final = struct.Struct(">H").unpack_from
_u32be: Final = struct.Struct(">I").unpack_from
_u32le: Final = struct.Struct("<I").unpack_from
_chunk: Final = struct.Struct(">I4s").unpack_from

# The least bytes of a PNG's chunks in front of the pixels that Pillow takes as they are.
_PLAIN_CHUNKS: Final = {
    b"PLTE": 0, b"gAMA": 4, b"pHYs": 9, b"sRGB": 1, b"cHRM": 32, b"bKGD": 0, b"tIME": 0, b"sBIT": 0,
}  # fmt: skip
_PNG_MODES: Final = frozenset(
    {(1, 0), (2, 0), (4, 0), (8, 0), (16, 0), (8, 2), (16, 2), (1, 3), (2, 3), (4, 3), (8, 3), (8, 4),
     (16, 4), (8, 6), (16, 6)}
)  # fmt: skip

# TIFF tags that Pillow asks for, and the field types in which it takes them.
_SHORT, _LONG, _RATIONAL, _BYTE, _UNDEFINED = 3, 4, 5, 1, 7
_FILL_ORDER, _RESOLUTIONS, _COLOURS, _TILE_OFFSETS, _EXTRA, _FORMAT = 266, (282, 283), 320, 324, 338, 339
_TILE_SIDES: Final = frozenset({322, 323})
_ONE_NUMBER: Final = _TILE_SIDES | {WIDTH, HEIGHT, ORIENTATION, COMPRESSION, SAMPLES_PER_PIXEL, PHOTOMETRIC, 296} | {
    _FILL_ORDER, PLANAR, ROWS_PER_STRIP
}  # fmt: skip
_NUMBERS: Final = frozenset(tag for pair in PAYLOADS for tag in pair)
_SHORTS: Final = frozenset({BITS_PER_SAMPLE, _EXTRA, _FORMAT, _COLOURS})
_MODE_TAGS: Final = frozenset(
    {BITS_PER_SAMPLE, _EXTRA, _FORMAT, COMPRESSION, PHOTOMETRIC, SAMPLES_PER_PIXEL, PLANAR, _FILL_ORDER}
)
_BLOBS: Final = frozenset({700, 34675})  # XMP, ICC profile
_WINDOWS_PHOTO: Final = 0xBC01


def check_opens(data: bytes | bytearray | memoryview, kind: str) -> None:
    """Check that Pillow opens an image, as each client does first.

    Usual headers are told by themselves; Pillow is asked about all others.

    Args:
        data: The image file.
        kind: Its format, as returned by `probe`.

    Raises:
        ImageError: Pillow does not open it.
        DecompressionBomb: (an `ImageError`) It would be too large for Pillow.
    """
    view = as_view(data)
    if surely_opens(view, kind):
        return
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with pillow_image(view, kind):
                return
        except Image.DecompressionBombError as error:
            raise DecompressionBomb(str(error)) from error
        except Exception as error:  # plugins raise whatever their parser runs into
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ImageError(f"Pillow cannot open it: {reason}") from error


def surely_opens(view: memoryview, kind: str) -> bool:
    """Return True if Pillow opens an image that is known to be whole; False if it must be asked."""
    try:
        return kind in _SURE and _SURE[kind](view)
    except (ImageError, IndexError, struct.error):
        return False


def _jpeg(view: memoryview) -> bool:
    at, has_frame = 2, False
    for _ in range(_MAX_SEGMENTS):
        marker = view[at + 1]
        if view[at] != 0xFF or not 0xC0 <= marker <= 0xFE or 0xD0 <= marker <= 0xD9 or 0xF0 <= marker <= 0xFD:
            return False
        length = _u16be(view, at + 2)[0]
        body = view[at + 4 : at + 2 + length]
        if length < 2 or len(body) != length - 2:
            return False
        if marker == 0xDA:
            return has_frame
        if marker in (0xC0, 0xC2):
            if has_frame or body[0] != 8 or body[5] not in (1, 3, 4) or len(body) != 6 + 3 * body[5]:
                return False
            has_frame = True
        elif marker == 0xDB:
            if any(table >> 4 for table in body[::65]) or len(body) % 65:
                return False
        elif marker == 0xE0:
            if len(body) < 7:
                return False
        elif marker == 0xEE:
            if len(body) < 12:
                return False
        elif marker not in (0xC4, 0xDD, 0xFE) and not (marker == 0xE2 and _is_profile(body)):
            return False
        at += 2 + length
    return False


def _is_profile(body: memoryview) -> bool:
    return len(body) >= 14 and bytes(body[:12]) == b"ICC_PROFILE\0"


def _png(view: memoryview) -> bool:
    if (view[24], view[25]) not in _PNG_MODES or view[27]:
        return False
    at = 33
    for _ in range(_MAX_SEGMENTS):
        length, name = _chunk(view, at)
        if name == b"IDAT":
            return True
        end = at + 8 + length
        if (
            length < _PLAIN_CHUNKS.get(name, 1 << 32)
            or zlib.crc32(view[at + 4 : end]) != _u32be(view, end)[0]
        ):
            return False
        at = end + 4
    return False


def _webp(view: memoryview) -> bool:
    """Return True for a file of one chunk, whose header libwebp takes."""
    name, length = bytes(view[12:16]), _u32le(view, 16)[0]
    end = 20 + length + (length & 1)
    if _u32le(view, 4)[0] != end - 8 or end > len(view):
        return False
    if name == b"VP8L":
        return length > 5 and view[20] == 0x2F and view[24] < 0x20
    if name != b"VP8 " or length <= 10 or bytes(view[23:26]) != b"\x9d\x01\x2a":
        return False
    bits = int.from_bytes(view[20:23], "little")  # inter frame, profile, shown, bytes of the first partition
    return not bits & 1 and (bits >> 1 & 7) <= 3 and bool(bits & 16) and bits >> 5 < length


def _tiff(view: memoryview) -> bool:
    """Return True for a classic TIFF whose tags have the usual types, in a mode that Pillow knows."""
    layout, directory = read_header(view)
    found: dict[int, Entry] = {}
    room = len(view)
    for row, (tag, kind, values, field) in enumerate(
        iter_entries(view, layout, directory, entry_number(view, layout, directory))
    ):
        size = TYPE_SIZES.get(kind, 0) * values
        if tag in found or not size or not _is_plain(tag, kind, values):
            return False
        if size > layout.pointer.size:
            room -= size
            if room < 0 or field + size > len(view):
                return False
        if tag in _RESOLUTIONS and view[field + 4 : field + 8] == bytes(4):  # divided by
            return False
        found[tag] = Entry(row, tag, kind, values, field)
    if layout.pointer.size != 4 or _WINDOWS_PHOTO in found:
        return False
    if STRIP_OFFSETS not in found and not (_TILE_OFFSETS in found and found.keys() >= _TILE_SIDES):
        return False
    tags = {tag: integers(view, layout, directory, found[tag]) for tag in _MODE_TAGS & found.keys()}
    return _has_mode(bytes(view[:2]), tags, has_colours=_COLOURS in found)


def _is_plain(tag: int, kind: int, values: int) -> bool:
    """Whether a tag that Pillow asks for has the type that it expects."""
    if tag in _ONE_NUMBER:
        return values == 1 and kind in (_SHORT, _LONG)
    if tag in _NUMBERS:
        return kind in (_SHORT, _LONG)
    if tag in _SHORTS:
        return kind == _SHORT
    if tag in _RESOLUTIONS:
        return values == 1 and kind == _RATIONAL
    return tag not in _BLOBS or kind in (_BYTE, _UNDEFINED)


def _has_mode(order: bytes, tags: dict[int, tuple[int, ...]], has_colours: bool) -> bool:
    """Whether Pillow has a mode for the pixels, by its own table."""
    from PIL.TiffImagePlugin import COMPRESSION_INFO, OPEN_INFO

    bits, formats = tags.get(BITS_PER_SAMPLE, (1,)), tags.get(_FORMAT, (1,))
    compression = COMPRESSION_INFO.get(*tags.get(COMPRESSION, (1,)))
    is_usual = (
        compression not in (None, "tiff_jpeg")
        and len(set(formats)) == 1
        and all(tags.get(tag, (1,)) == (1,) for tag in (PLANAR, _FILL_ORDER))
        and tags.get(SAMPLES_PER_PIXEL, (1,)) == (len(bits),)
    )
    key = (order, *tags.get(PHOTOMETRIC, (0,)), formats[:1], 1, bits, tags.get(_EXTRA, ()))
    mode, _ = OPEN_INFO.get(key, (None, None))
    return is_usual and mode is not None and (has_colours or mode not in ("P", "PA"))


_SURE: Final[dict[str, Callable[[memoryview], bool]]] = {
    "jpg": _jpeg, "png": _png, "webp": _webp, "tiff": _tiff,
}  # fmt: skip
