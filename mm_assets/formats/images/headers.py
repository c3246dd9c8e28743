"""Header parsers of the six image formats: width, height and EXIF orientation.

Each parser takes bytes that `probe.sniff` recognised and returns (width, height, orientation) as stored.
Sides may be zero or negative; the caller checks them. Parsers raise ImageError for damage, and IndexError or
struct.error if the bytes end too early.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable
from typing import Final

from .errors import ImageError
from .tiff_ifd import dimensions, find_entries, orientation, read_header
from .tiff_tags import HEIGHT, ORIENTATION, WIDTH

Buffer = bytes | memoryview
Size = tuple[int, int, int]
"""Width, height (pixels), orientation."""

_NO_FRAME_HEADERS: Final = frozenset({0xC4, 0xC8, 0xCC})  # DHT, JPG, DAC: within the range of the SOF markers
# Far above real files; they bound the work on malicious ones.
_MAX_SEGMENTS: Final = 1 << 14
_MAX_CHUNKS: Final = 1 << 16

_MARKER: Final = re.compile(rb"\xff[^\x00\xff]", re.DOTALL)

_u16be: Final = struct.Struct(">H").unpack_from
_u32be_pair: Final = struct.Struct(">II").unpack_from
_chunk_be: Final = struct.Struct(">I4s").unpack_from
_chunk_le: Final = struct.Struct("<4sI").unpack_from
_u16le_pair: Final = struct.Struct("<HH").unpack_from
_u32le: Final = struct.Struct("<I").unpack_from
_i32le_pair: Final = struct.Struct("<ii").unpack_from
_sof: Final = struct.Struct(">HBHHB").unpack_from  # length, bits, height, width, components
_ORIENTATION_ONLY: Final = frozenset({ORIENTATION})
_SIZE_TAGS: Final = frozenset({WIDTH, HEIGHT, ORIENTATION})


def _exif_orientation(block: Buffer) -> int:
    """Return the orientation in an EXIF block (a TIFF file without an image), 1 if it is damaged."""
    view = memoryview(block)
    if bytes(view[:6]) == b"Exif\0\0":
        view = view[6:]
    try:
        layout, first = read_header(view)
        return orientation(
            view, layout, first, find_entries(view, layout, first, _ORIENTATION_ONLY).get(ORIENTATION)
        )
    except ImageError:
        return 1


def _next_marker(data: Buffer, at: int) -> int:
    """Return the position of the next marker from ``at`` on; skip fill and stray bytes as decoders do."""
    found = _MARKER.search(data, at)
    if found is None:
        raise IndexError(at)
    return found.start()


def _jpeg(data: Buffer) -> Size:
    """Parse a JPEG, whose frame header and EXIF block come in any order before the scan.

    Damage after the frame header is ignored.
    """
    at, turned = 2, 0
    width = height = -1
    try:
        for _ in range(_MAX_SEGMENTS):
            marker = data[at + 1]
            if data[at] != 0xFF or marker == 0xFF or marker == 0:
                at = _next_marker(data, at)
                marker = data[at + 1]
            if marker == 0xDA or marker == 0xD9:  # scan, end of image
                break
            if marker == 0x01 or 0xD0 <= marker <= 0xD8:  # markers without a segment
                at += 2
                continue
            length = _u16be(data, at + 2)[0]
            if length < 2:
                raise ImageError(f"jpg segment of {length} bytes at offset {at}")
            if marker == 0xE1:
                if not turned and data[at + 4 : at + 10] == b"Exif\0\0":
                    turned = _exif_orientation(data[at + 10 : at + 2 + length])
            elif 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME_HEADERS and width < 0:
                _, _, high, wide, components = _sof(data, at + 2)
                if not components or length != 8 + 3 * components:
                    raise ImageError("jpg frame header is damaged")
                width, height = wide, high
            if turned and width >= 0:
                break
            at += 2 + length
    except (IndexError, struct.error, ImageError):
        if width < 0:
            raise
    if width < 0:
        raise ImageError("jpg without a frame header")
    return width, height, turned or 1


def _png(data: Buffer) -> Size:
    if data[8:16] != b"\0\0\0\rIHDR":
        raise ImageError("png does not begin with an IHDR chunk")
    if zlib.crc32(data[12:29]) != _u32be_pair(data, 25)[1]:
        raise ImageError("png header is damaged: wrong checksum")
    width, height = _u32be_pair(data, 16)
    at, end = 33, len(data) - 8
    # eXIf may come before or after the pixels.
    for _ in range(_MAX_CHUNKS):
        if at > end:
            break
        length, name = _chunk_be(data, at)
        if name == b"eXIf":
            return width, height, _exif_orientation(data[at + 8 : at + 8 + length])
        at += length + 12
    return width, height, 1


def _webp(data: Buffer) -> Size:
    name, length = _chunk_le(data, 12)
    if name == b"VP8 ":
        if data[20] & 1 or data[23:26] != b"\x9d\x01\x2a":
            raise ImageError("webp does not begin with a key frame")
        width, height = _u16le_pair(data, 26)
        return width & 0x3FFF, height & 0x3FFF, 1
    if name == b"VP8L":
        bits = _u32le(data, 21)[0]
        if data[20] != 0x2F or bits >> 29:
            raise ImageError("webp has no valid lossless header")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, 1
    if name != b"VP8X":
        raise ImageError(f"webp begins with an unknown chunk {name!r}")
    width = int.from_bytes(data[24:27], "little") + 1
    height = int.from_bytes(data[27:30], "little") + 1
    if len(data) < 30 or length < 10:
        raise ImageError("webp header is cut short")
    turned = 1
    if data[20] & 0x08:
        at, end = 20 + length + (length & 1), len(data) - 8
        for _ in range(_MAX_CHUNKS):
            if at > end:
                break
            name, length = _chunk_le(data, at)
            if name == b"EXIF":
                turned = _exif_orientation(data[at + 8 : at + 8 + length])
                break
            at += 8 + length + (length & 1)
    return width, height, turned


def _gif(data: Buffer) -> Size:
    return *_u16le_pair(data, 6), 1


def _bmp(data: Buffer) -> Size:
    if _u32le(data, 14)[0] == 12:
        return *_u16le_pair(data, 18), 1
    width, height = _i32le_pair(data, 18)
    if height < -(1 << 24):
        # No real file has it, and other readers take it as unsigned.
        raise ImageError(f"bmp header is damaged: height {height}")
    return width, abs(height), 1  # negative: rows are stored from the top down


def _tiff(data: Buffer) -> Size:
    view = memoryview(data)
    layout, first = read_header(view)
    return dimensions(view, layout, first, find_entries(view, layout, first, _SIZE_TAGS))


PARSERS: Final[dict[str, Callable[[Buffer], Size]]] = {
    "jpg": _jpeg, "png": _png, "webp": _webp, "gif": _gif, "tiff": _tiff, "bmp": _bmp,
}  # fmt: skip
