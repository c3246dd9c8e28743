"""Image headers: format, width, height and EXIF orientation of an image, and whether its bytes are complete.

* `probe` returns format and size from the header; pixels are never decoded. `sniff` recognises the six
  formats that have a parser here, Pillow some others.
* Parsers take bytes that `sniff` recognised and return (width, height, orientation) as stored. Sides may be
  zero or negative; the caller checks them. Parsers raise ImageError for damage, and IndexError or
  struct.error if the bytes end too early.
* `looks_whole` checks by the structure of the bytes that nothing is missing: in microseconds, without
  decoding or copying.
"""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from operator import add
from threading import Lock
from typing import Final

from mm_assets.formats.images.tiff_directories import (
    HEIGHT,
    ORIENTATION,
    PAYLOADS,
    TYPE_SIZES,
    WIDTH,
    Entry,
    Layout,
    as_view,
    dimensions,
    entry_number,
    find_entries,
    integers,
    iter_directories,
    iter_entries,
    orientation,
    read_header,
)
from mm_assets.model.errors import ImageError

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


_MAX_BLOCKS: Final = 1 << 17

_UNCOMPRESSED_BMP: Final = frozenset({0, 3, 6})  # plain, and with colour masks
_BMP_FILE_HEADER: Final = 14
_PAYLOAD_TAGS: Final = frozenset(tag for pair in PAYLOADS for tag in pair)

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


def _jpeg_end(view: memoryview) -> bool:
    return bytes(view[-2:]) == b"\xff\xd9"  # never within a scan, where 0xFF is escaped


def _png_end(view: memoryview) -> bool:
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


def _webp_end(view: memoryview) -> bool:
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


def _gif_end(view: memoryview) -> bool:
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


def _bmp_end(view: memoryview) -> bool:
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


def _tiff_end(view: memoryview) -> bool:
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
    "jpg": _jpeg_end, "png": _png_end, "webp": _webp_end, "gif": _gif_end, "bmp": _bmp_end, "tiff": _tiff_end,
}  # fmt: skip


CONTENT_TYPES: Final[dict[str, str]] = {
    "jpg": "image/jpeg",
    "png": "image/png",
    "webp": "image/webp",
    "gif": "image/gif",
    "tiff": "image/tiff",
    "bmp": "image/bmp",
}
"""Content type of each file extension that we write."""

EXTENSIONS: Final[dict[str, str]] = {
    content_type: extension for extension, content_type in CONTENT_TYPES.items()
}
"""File extension of each content type."""

_Buffer = bytes | bytearray | memoryview

_PILLOW_FORMATS: Final = {
    "JPEG": "jpg", "MPO": "jpg", "PNG": "png", "WEBP": "webp", "GIF": "gif", "TIFF": "tiff", "BMP": "bmp",
}  # fmt: skip
_BMP_HEADERS: Final = frozenset({12, 16, 40, 52, 56, 64, 108, 124})
_TIFF_MAGICS: Final = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_pillow_lock: Final = Lock()


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """Size, format and orientation of an image, as stored in its header.

    ``width`` and ``height`` are in pixels, ``format`` is a key of CONTENT_TYPES, ``orientation`` is that of
    EXIF (1..8, 1 if unknown).
    """

    width: int
    height: int
    format: str
    orientation: int = 1

    @property
    def display_width(self) -> int:
        """Width as shown, in pixels: orientations 5 to 8 rotate the stored image by a quarter turn."""
        return self.height if self.orientation >= 5 else self.width

    @property
    def display_height(self) -> int:
        """Height as shown, in pixels."""
        return self.width if self.orientation >= 5 else self.height

    @property
    def content_type(self) -> str:
        """MIME type of the format."""
        return CONTENT_TYPES[self.format]


def sniff(data: _Buffer) -> str | None:
    """Return the format (a key of CONTENT_TYPES) that the first bytes announce, or None.

    The rest of the bytes may be anything.
    """
    head = bytes(data[:18])
    if head.startswith(b"\xff\xd8\xff"):
        return "jpg"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "webp"
    if head.startswith((b"GIF89a", b"GIF87a")):
        return "gif"
    if head.startswith(_TIFF_MAGICS):
        return "tiff"
    # "BM" alone is too weak: text may begin with it.
    if head.startswith(b"BM") and len(head) == 18 and _u32le(head, 14)[0] in _BMP_HEADERS:
        return "bmp"
    return None


def probe(data: _Buffer) -> ImageInfo:
    """Return size, format and orientation of an image.

    A prefix of the file that holds the header is enough (for a TIFF, its first directory). An EXIF block that
    is damaged or beyond the prefix counts as orientation 1, because it does not make an image unusable.

    Raises:
        ImageError: The format is unknown, the header is damaged, or the image has no pixels.
    """
    if not isinstance(data, bytes):
        data = as_view(data)
    kind = sniff(data)
    if kind is None:
        return _probe_with_pillow(data)
    try:
        width, height, turned = PARSERS[kind](data)
    except (IndexError, struct.error) as error:
        raise ImageError(f"{kind} header is cut short: {len(data)} bytes given") from error
    if width <= 0 or height <= 0:
        raise ImageError(f"{kind} image of {width}x{height} pixels")
    return ImageInfo(width, height, kind, turned)


def _probe_with_pillow(data: _Buffer) -> ImageInfo:
    """Probe formats that Pillow recognises from the first bytes and `sniff` does not."""
    from PIL import Image, TiffImagePlugin

    if not data:
        raise ImageError("not an image: no bytes")
    # Padded, as some of Pillow's tests read past the end of short data.
    head = bytes(data[:16]).ljust(16, b"\0")
    with _pillow_lock:  # plugins register themselves on first use
        Image.init()
    for name in Image.ID:
        factory, accept = Image.OPEN[name]
        # Not Image.open: its limit would refuse huge images, which are only measured here.
        if accept is None or accept(head) is not True:
            continue
        kind = _PILLOW_FORMATS.get(name)
        if kind is None:
            if name == "CUR" and head[4:6] == bytes(2):  # TGA begins alike; CUR has a count here
                name = "TGA"
            raise ImageError(f"{name} images are not supported, only {', '.join(CONTENT_TYPES)}")
        try:
            with factory(io.BytesIO(data), "") as image:
                turned = image.getexif().get(ORIENTATION, 1)
                size = image.size
                if isinstance(image, TiffImagePlugin.TiffImageFile):  # its `size` is the displayed one
                    size = image.tag_v2[WIDTH], image.tag_v2[HEIGHT]
        except Exception as error:  # plugins raise whatever their parser runs into
            raise ImageError(f"{kind} header cannot be read: {error}") from error
        if min(size) <= 0:
            raise ImageError(f"{kind} image of {size[0]}x{size[1]} pixels")
        return ImageInfo(*size, kind, turned if turned in range(1, 9) else 1)
    raise ImageError(f"unknown image format, begins with {head[:8].hex(' ')}")
