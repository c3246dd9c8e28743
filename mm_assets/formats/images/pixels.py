"""Pixels of an image: decoded as 8-bit RGB within bounds on memory, scaled down for the UI, or only checked.

* `rgb_pixels` decodes by Pillow, within the same bounds as the decoding check.
* `decoding_memory` is how much memory that takes, as Pillow and its libraries do it.
* `raw_tiles` finds the pixels of an uncompressed picture in the file. They are taken from there a band of
  rows at a time: Pillow would make a picture of all of them first, with four bytes for each.
* `ThumbnailStrip` puts thumbnails of a shard's first images side by side in one small picture for the UI.
* `check_opens` checks what every client needs of an image: that Pillow opens it. No pixel is decoded.
"""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.formats.images import probe
from mm_assets.formats.images.decode import decoding, opened, pillow_image, refuse_bomb
from mm_assets.formats.images.tiff_directories import (
    BITS_PER_SAMPLE,
    COMPRESSION,
    ORIENTATION,
    PHOTOMETRIC,
    PLANAR,
    SAMPLES_PER_PIXEL,
    TYPE_SIZES,
    Entry,
    as_view,
    entry_number,
    integers,
    iter_entries,
    next_directory,
    read_header,
)
from mm_assets.model.errors import ImageError
from mm_assets.model.nested_types import binary_views
from mm_assets.model.samples import InterleavedBatch, Step, StepResult

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile


_BITS: Final = {
    ("RGB", "RGB"): 24,
    ("RGB", "BGR"): 24,
    ("RGB", "BGRX"): 32,
    ("RGB", "RGBX"): 32,
    ("RGBX", "RGBX"): 32,
    ("RGBA", "RGBA"): 32,
    ("RGBA", "BGRA"): 32,
    ("RGB", "RGB;16L"): 48,
    ("RGB", "RGB;16B"): 48,
}
"""Bits of a pixel by mode and raw mode of Pillow. Of other modes Pillow makes no more than the file has."""


@dataclass(frozen=True)
class RawTile:
    """A strip or tile of an uncompressed picture.

    Attributes:
        box: left, upper, right and lower edge in the picture.
        offset: where its rows begin in the file.
        line: bytes from a row to the next.
        step: 1, or -1 if the lowest row comes first.
    """

    mode: str
    raw_mode: str
    box: tuple[int, int, int, int]
    offset: int
    line: int
    step: int

    def bands(self, data: memoryview, pixels: int) -> Iterator[tuple[int, Image]]:
        """Yield the upper edge of each band of at most ``pixels``, or one row, and the band."""
        from PIL import Image

        left, upper, right, lower = self.box
        rows = max(1, pixels // (right - left))
        for first in range(0, lower - upper, rows):
            last = min(first + rows, lower - upper)
            found = data[self.offset + first * self.line : self.offset + last * self.line]
            size = (right - left, last - first)
            band = Image.frombytes(self.mode, size, found, "raw", self.raw_mode, self.line, self.step)  # type: ignore[arg-type]
            yield (upper + first if self.step == 1 else lower - last), band


def raw_tiles(image: ImageFile, data: bytes | memoryview) -> Sequence[RawTile] | None:
    """Return where the pixels of a picture lie, as stored, before it is loaded.

    Returns:
        None if it is compressed, of another mode than `RawTile.bands` is worth it for, if something is
        missing, or covered twice: all that is left to Pillow.
    """
    tiles = [_tile(image.mode, *tile) for tile in image.tile]
    found = [tile for tile in tiles if tile is not None and tile.offset + _size(tile) <= len(data)]
    if not found or len(found) < len(tiles):
        return None
    width, height = (max(tile.box[side] for tile in found) for side in (2, 3))
    if sorted((width, height)) != sorted(image.size):  # Pillow swaps them, as an orientation says
        return None
    area = sum((right - left) * (lower - upper) for left, upper, right, lower in (t.box for t in found))
    return found if area == width * height else None


def _size(tile: RawTile) -> int:
    return tile.line * (tile.box[3] - tile.box[1])


def _tile(
    mode: str, codec: str, box: tuple[int, int, int, int] | None, offset: int, args: object
) -> RawTile | None:
    if codec != "raw" or box is None or type(offset) is not int or offset < 0:
        return None
    if not (isinstance(args, tuple) and len(args) == 3) or (bits := _BITS.get((mode, args[0]))) is None:
        return None
    raw_mode, stride, step = args
    least = ((box[2] - box[0]) * bits + 7) // 8
    if box[0] >= box[2] or box[1] >= box[3] or 0 < stride < least:
        return None
    return RawTile(mode, raw_mode, box, offset, stride or least, step)


_IN_PILLOW: Final = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2}  # bytes of a pixel; else 4
_RGB: Final = 3
_LUMA: Final = 1
_WEBP: Final = 16  # two canvases of the decoder, the frame as bytes, and the picture
_BITS_PER_SAMPLE: Final = 258  # TIFF tag
_START_OF_SCAN: Final = b"\xff\xda"


class TooMuchMemory(ImageError):
    """The image would take more memory to decode than there may be; it was not tried."""


def decoding_memory(image: ImageFile, kind: str, data: bytes | memoryview, is_raw: bool) -> int:
    """Return the bytes that are in memory at once, at most, when an image becomes RGB, the file among them.

    Args:
        image: the image, of which only the header has been read.
        kind: its format, as returned by `probe`.
        data: the file.
        is_raw: whether its pixels are taken from the file, without a picture of Pillow's.
    """
    pixels = image.width * image.height
    if is_raw:
        return len(data) + pixels * (_RGB + _LUMA)
    picture = _IN_PILLOW.get(image.mode, 4)
    each: float = picture + _RGB
    copies = 1
    if kind == "jpg":
        each = max(each, picture + _coefficients(image, data))
    elif kind == "webp":
        copies, each = 2, _WEBP
    elif kind == "gif":
        each = 4 + _RGB  # a frame may become RGB when it is loaded
    elif kind == "tiff":
        each = max(each, picture + _bits(image) / 8)  # a strip may be all of the picture
        if image.getexif().get(ORIENTATION, 1) != 1:
            each = max(each, 2 * picture, picture + 2 * _RGB)
    return copies * len(data) + round(pixels * each)


def _coefficients(image: ImageFile, data: bytes | memoryview) -> float:
    """Return the bytes of a pixel that libjpeg keeps of a file with several scans; 0 of any other."""
    layers = getattr(image, "layer", [])  # id, horizontal and vertical sampling, table
    header = bytes(data[: image.fp.tell()]) if image.fp is not None else b""
    in_first_scan = header[header.rfind(_START_OF_SCAN) + 4 :][:1] or b"\0"
    if not layers or not (image.info.get("progressive") or in_first_scan[0] < len(layers)):
        return 0
    across, down = (max(1, *(layer[side] for layer in layers)) for side in (1, 2))
    return 2 * sum(layer[1] * layer[2] for layer in layers) / (across * down)


def _bits(image: ImageFile) -> int:
    """Return the bits of a pixel in a TIFF file."""
    each = getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (1,))
    return sum(bits for bits in each if type(bits) is int) if isinstance(each, tuple) else 0


MAX_STRIP_BYTES: Final = 720
"""Bytes of a strip. As Markdown it stays below 1,000 characters: the UI shows that without a click."""

_HEIGHT: Final = 48  # pixels
_WIDEST: Final = 2 * _HEIGHT
_GAP: Final = 4
_LARGEST: Final = 16_000_000  # pixels; a larger image is not worth decoding for a preview
_TRIED: Final = 4  # images that are tried for each one shown
_QUALITIES: Final = (40, 15, 4, 1)


@dataclass
class ThumbnailStrip:
    """A step that changes nothing and keeps the first ``limit`` images of a shard, scaled down."""

    limit: int = 3
    pictures: list[Image] = field(default_factory=list)

    def __call__(self, batch: InterleavedBatch) -> StepResult:
        self.add(batch.data)
        return StepResult(batch)

    def add(self, rows: pa.Table) -> None:
        """Keep the images of an interleaved table, until there are enough."""
        if len(self.pictures) >= self.limit:
            return
        is_image = pc.equal(rows.column("modality"), "image")
        images = rows.column("binary_content")
        for row in pc.indices_nonzero(is_image)[: _TRIED * self.limit].to_pylist():
            if len(self.pictures) >= self.limit:
                return
            (view,) = binary_views(images.slice(row, 1).chunk(0))  # not all images of a batch are copied
            if view is not None and (picture := thumbnail(view)) is not None:
                self.pictures.append(picture)

    def of_removed(self, step: Step) -> Step:
        """Return a step that does what ``step`` does, and keeps images that it takes out."""

        def watched(batch: InterleavedBatch) -> StepResult:
            outcome = step(batch)
            if outcome.removed is not None:
                self.add(outcome.removed)
            return outcome

        return watched

    def webp(self) -> bytes:
        """Return the pictures side by side, in at most `MAX_STRIP_BYTES`; empty if there are none.

        Where they are too rich for that, the last ones are left out.
        """
        for shown in range(len(self.pictures), 0, -1):
            strip = _side_by_side(self.pictures[:shown])
            for quality in _QUALITIES:
                output = io.BytesIO()
                strip.save(output, "WEBP", quality=quality)
                if output.tell() <= MAX_STRIP_BYTES:
                    return output.getvalue()
        return b""


def thumbnail(data: memoryview) -> Image | None:
    """Return an image scaled down; None if it cannot be decoded or is too large to be worth it."""
    try:
        info = probe(data)
        refuse_bomb(info.width, info.height, _LARGEST)
        with opened(bytes(data), info.format, _LARGEST) as image:
            image.draft("RGB", (_WIDEST, _HEIGHT))
            image.thumbnail((_WIDEST, _HEIGHT))
            return image.convert("RGB")
    except ImageError:
        return None
    except Exception:  # noqa: BLE001  plugins raise whatever their parser runs into; a preview is no check
        return None


def _side_by_side(pictures: Sequence[Image]) -> Image:
    from PIL import Image

    width = sum(picture.width + _GAP for picture in pictures) - _GAP
    strip = Image.new("RGB", (width, max(picture.height for picture in pictures)), "white")
    left = 0
    for picture in pictures:
        strip.paste(picture, (left, 0))
        left += picture.width + _GAP
    return strip


# Headers that go on for longer are Pillow's to judge; it has limits of its own.
_MAX_SEGMENTS: Final = 256
_MAX_HEADER: Final = 1 << 20  # bytes
_ASCII, _SHORT, _LONG, _RATIONAL, _UNDEFINED = 2, 3, 4, 5, 7  # TIFF field types
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
# The field types of TIFF tags that Pillow takes as they are. Of these it looks only at those below.
_PLAIN_FIELDS: Final[dict[int, tuple[int, ...]]] = {
    **dict.fromkeys((254, 256, 257, 273, 278, 279, 322, 323, 324, 325), (_SHORT, _LONG)),
    **dict.fromkeys((258, 259, 262, 274, 277, 284, 296, 297, 317, 530, 531), (_SHORT,)),
    **dict.fromkeys((282, 283, 532), (_RATIONAL,)),
    **dict.fromkeys((270, 271, 272, 305, 306), (_ASCII,)),
    347: (_UNDEFINED,),
}
_ONE_VALUE: Final = frozenset({256, 257, 259, 262, 274, 277, 282, 283, 284, 296})
_LIBTIFF_COMPRESSIONS: Final = frozenset({5, 7, 8})  # LZW, JPEG, deflate
# Photometric interpretation and bits of the samples: grey, RGB, YCbCr.
_PLAIN_SAMPLES: Final = frozenset({(0, (8,)), (1, (8,)), (2, (8, 8, 8)), (6, (8, 8, 8))})

_u16be: Final = struct.Struct(">H").unpack_from
_u32be: Final = struct.Struct(">I").unpack_from
_u32le: Final = struct.Struct("<I").unpack_from
_chunk: Final = struct.Struct(">I4s").unpack_from


def check_opens(data: bytes | bytearray | memoryview, kind: str) -> None:
    """Check that Pillow opens an image, as each client does first.

    That takes as long as all else that is done with an image, so Pillow is not asked about the usual headers
    of JPEG, PNG, WebP and TIFF.

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


def _tiff(view: memoryview) -> bool:
    """Return True for a classic TIFF whose first directory has usual fields, for libtiff to decode."""
    layout, first = read_header(view)
    number = entry_number(view, layout, first)
    next_directory(view, layout, first, number)  # is there
    entries: dict[int, Entry] = {}
    room = len(view)
    for row, (tag, kind, values, value) in enumerate(iter_entries(view, layout, first, number)):
        if kind not in _PLAIN_FIELDS.get(tag, ()) or tag in entries or not values:
            return False
        if (size := TYPE_SIZES[kind] * values) > layout.pointer.size:
            room -= size
            if value + size > len(view):
                return False
        if tag in _ONE_VALUE and values != 1:
            return False
        entries[tag] = Entry(row, tag, kind, values, value)
    if room < 0 or layout.pointer.size != 4:
        return False

    def of(tag: int) -> tuple[int, ...]:
        return integers(view, layout, first, entries[tag]) if tag in entries else ()

    bits, photometric = of(BITS_PER_SAMPLE), of(PHOTOMETRIC)
    return (
        _LIBTIFF_COMPRESSIONS.issuperset(of(COMPRESSION) or (1,))
        and of(PLANAR) in ((), (1,))
        and len(photometric) == 1
        and (photometric[0], bits) in _PLAIN_SAMPLES
        and (of(SAMPLES_PER_PIXEL) or (1,)) == (len(bits),)
    )


_SURE: Final[dict[str, Callable[[memoryview], bool]]] = {
    "jpg": _jpeg,
    "png": _png,
    "webp": _webp,
    "tiff": _tiff,
}


Pixels = npt.NDArray[np.uint8]

_STRIP: Final = 1 << 17  # pixels converted at once
_SIXTEEN_BITS: Final = "I;16"
_BACK: Final = {6: 8, 8: 6}  # the other orientations undo themselves
_WITHOUT_RANGE: Final = frozenset({"I", "F"})


def rgb_pixels(
    data: bytes | bytearray | memoryview, kind: str, max_pixels: int, max_memory: int | None = None
) -> Pixels:
    """Decode the first frame of an image: height x width x 3, as stored (EXIF orientation not applied).

    Transparency is left out. Of 16 bits the high eight count. Integers of 32 bits and floating-point numbers,
    which have no black and white of their own, are stretched from their least to their greatest value.

    Args:
        data: The image file.
        kind: Its format, as returned by `probe`.
        max_pixels: Limit for one frame.
        max_memory: Limit for the bytes that are in memory at once, the file and the pixels among them.

    Raises:
        ImageError: Pillow cannot decode it.
        DecompressionBomb: (an `ImageError`) It has more than ``max_pixels`` pixels. None has been decoded.
        TooMuchMemory: (an `ImageError`) It would take more than ``max_memory``. None has been decoded.
    """
    with decoding(data, kind, max_pixels) as image:
        raw = data if isinstance(data, bytes) else as_view(data)
        tiles = raw_tiles(image, raw)
        needed = decoding_memory(image, kind, raw, is_raw=tiles is not None)
        if max_memory is not None and needed > max_memory:
            raise TooMuchMemory(
                f"{image.width}x{image.height} pixels: {needed} bytes to decode, at most {max_memory}"
            )
        if tiles is not None:
            return _from_tiles(tiles, memoryview(raw))
        orientation = image.getexif().get(ORIENTATION, 1) if kind == "tiff" else 1
        image.load()
        pixels = _as_rgb(image)
        if orientation in range(2, 9):  # Pillow has applied it, to TIFF alone
            return np.ascontiguousarray(turned(pixels, _BACK.get(orientation, orientation)))
        return pixels


def turned(pixels: Pixels, orientation: int) -> Pixels:
    """Return a view of a picture, turned as an EXIF orientation (1 to 8) says."""
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels


def _from_tiles(tiles: Sequence[RawTile], data: memoryview) -> Pixels:
    width, height = (max(tile.box[side] for tile in tiles) for side in (2, 3))
    pixels = np.empty((height, width, 3), np.uint8)
    for tile in tiles:
        for top, band in tile.bands(data, _STRIP):
            into = pixels[top : top + band.height, tile.box[0] : tile.box[2]]
            into[:] = np.asarray(band if band.mode == "RGB" else band.convert("RGB"))
    return pixels


def _as_rgb(image: Image) -> Pixels:
    """Convert in strips: Pillow's picture and ours are all that is in memory."""
    pixels = np.empty((image.height, image.width, 3), np.uint8)
    bounds = _bounds(image) if image.mode in _WITHOUT_RANGE else (0.0, 1.0)
    for top, strip in _strips(image):
        into = pixels[top : top + strip.height]
        if image.mode.startswith(_SIXTEEN_BITS):
            into[:] = (np.asarray(strip) >> 8)[..., None]
        elif image.mode in _WITHOUT_RANGE:
            into[:] = _stretched(np.asarray(strip), *bounds)[..., None]
        else:
            into[:] = np.asarray(strip if image.mode == "RGB" else strip.convert("RGB"))
    return pixels


def _strips(image: Image) -> Iterator[tuple[int, Image]]:
    """Yield the first row of each strip, and the strip."""
    rows = max(1, _STRIP // image.width)
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _bounds(image: Image) -> tuple[float, float]:
    """Return the least and the greatest finite value; (0, 0) if there is none."""
    low, high = np.inf, -np.inf
    for _, strip in _strips(image):
        values = np.asarray(strip)
        finite = values[np.isfinite(values)]
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    return (low, high) if low <= high else (0.0, 0.0)


def _stretched(values: npt.NDArray[Any], low: float, high: float) -> Pixels:
    """Return values scaled so that ``low..high`` becomes 0..255; what is no number becomes 0."""
    if not low < high:
        return np.zeros(values.shape, np.uint8)
    known = np.clip(np.nan_to_num(values.astype(np.float64), nan=low), low, high)
    return np.rint((known - low) * (255 / (high - low))).astype(np.uint8)
