"""What every client needs of an image: that Pillow opens it. No pixel is decoded."""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Callable
from typing import Final

from .decode import pillow_image
from .errors import ImageError
from .tiff_ifd import as_view, entry_number, iter_entries, read_header

# Headers that go on for longer are Pillow's to judge; it has limits of its own.
_MAX_SEGMENTS: Final = 256
_MAX_HEADER: Final = 1 << 20  # bytes
_SHORT, _RATIONAL = 3, 5  # TIFF field types
_RESOLUTION: Final = {282: _RATIONAL, 296: _SHORT}  # TIFF tags that Pillow asks of EXIF, and their types

# The least bytes of a JPEG's segments that Pillow takes as they are: tables and a comment, then APP0 and on.
_PLAIN_SEGMENTS: Final = {
    0xC4: 0, 0xDD: 0, 0xFE: 0, 0xE0: 12, 0xE1: 0, 0xE2: 14, 0xEC: 0, 0xEE: 12,
}  # fmt: skip
# The least bytes of a PNG's chunks in front of the pixels that Pillow takes as they are.
_PLAIN_CHUNKS: Final = {
    b"PLTE": 0, b"gAMA": 4, b"pHYs": 9, b"sRGB": 1, b"cHRM": 32, b"bKGD": 0, b"tIME": 0, b"sBIT": 0,
    b"tRNS": 6, b"tEXt": 0, b"eXIf": 0,
}  # fmt: skip
_PNG_MODES: Final = frozenset(
    {(1, 0), (2, 0), (4, 0), (8, 0), (16, 0), (8, 2), (16, 2), (1, 3), (2, 3), (4, 3), (8, 3), (8, 4),
     (16, 4), (8, 6), (16, 6)}
)  # fmt: skip

_u16be: Final = struct.Struct(">H").unpack_from
_u32be: Final = struct.Struct(">I").unpack_from
_u32le: Final = struct.Struct("<I").unpack_from
_chunk: Final = struct.Struct(">I4s").unpack_from


def check_opens(data: bytes | bytearray | memoryview, kind: str) -> None:
    """Check that Pillow opens an image, as each client does first.

    That takes as long as all else that is done with an image, so Pillow is not asked about the usual headers
    of JPEG, PNG and WebP.

    Args:
        data: The image file.
        kind: Its format, as returned by `probe`.

    Raises:
        ImageError: Pillow does not open it.
    """
    view = as_view(data)
    if surely_opens(view, kind):
        return
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with pillow_image(view, "mpo" if kind == "jpg" else kind):
                return
        except Image.DecompressionBombError:
            return  # too large for Pillow as it is set; who allows such images sets it, too
        except Exception as error:  # plugins raise whatever their parser runs into
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ImageError(f"Pillow cannot open it: {reason}") from error


def surely_opens(view: memoryview, kind: str) -> bool:
    """Return True if Pillow opens an image that `probe` has measured; False if it must be asked."""
    try:
        return kind in _SURE and _SURE[kind](view)
    except (ImageError, IndexError, struct.error):
        return False


def _jpeg(view: memoryview) -> bool:
    exif: list[memoryview] = []
    at, frames, has_density = 2, 0, False
    for _ in range(_MAX_SEGMENTS):
        marker, length = view[at + 1], _u16be(view, at + 2)[0]
        body = view[at + 4 : at + 2 + length]
        if view[at] != 0xFF or length < 2 or len(body) != length - 2:
            return False
        if marker == 0xDA:
            is_plain = has_density or not exif or (len(exif) == 1 and _is_plain_exif(exif[0]))
            return frames == 1 and is_plain
        if marker in (0xC0, 0xC1, 0xC2):
            frames += 1
            if body[0] != 8 or body[5] not in (1, 3, 4) or len(body) != 6 + 3 * body[5]:
                return False
        elif marker == 0xDB:
            if any(table >> 4 for table in body[::65]) or len(body) % 65:
                return False
        elif len(body) < _PLAIN_SEGMENTS.get(marker, 1 << 16):
            return False
        elif marker == 0xE0:
            has_density |= bytes(body[:4]) == b"JFIF" and body[7] in (1, 2)
        elif marker == 0xE1 and bytes(body[:6]) == b"Exif\0\0":
            exif.append(body[6:])
        elif marker == 0xE2 and bytes(body[:4]) == b"MPF\0":
            return False
        at += 2 + length
    return False


def _is_plain_exif(block: memoryview) -> bool:
    """Return True if an EXIF block states its resolution as is usual, or not at all."""
    layout, first = read_header(block)
    return layout.pointer.size == 4 and not any(
        tag in _RESOLUTION and (kind, values) != (_RESOLUTION[tag], 1)
        for tag, kind, values, _ in iter_entries(block, layout, first, entry_number(block, layout, first))
    )


def _png(view: memoryview) -> bool:
    if (view[24], view[25]) not in _PNG_MODES or view[27]:
        return False
    at = 33
    while at < _MAX_HEADER:
        length, name = _chunk(view, at)
        if name == b"IDAT":
            return True
        end = at + 8 + length
        if length < _PLAIN_CHUNKS.get(name, 1 << 32):
            return False
        if zlib.crc32(view[at + 4 : end]) != _u32be(view, end)[0]:
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


_SURE: Final[dict[str, Callable[[memoryview], bool]]] = {"jpg": _jpeg, "png": _png, "webp": _webp}
