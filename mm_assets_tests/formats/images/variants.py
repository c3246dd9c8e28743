"""Small images of every kind of structure that the six formats have, and what makes bombs of them."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Sequence
from typing import Any

from PIL import Image

from mm_assets_tests.formats.images.tiff_tools import Page, grey_page, write_tiff

PILLOW = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP", "gif": "GIF", "tiff": "TIFF", "bmp": "BMP"}


def noise(size: tuple[int, int] = (61, 43), seed: int = 7) -> Image.Image:
    return Image.frombytes("RGB", size, random.Random(seed).randbytes(3 * size[0] * size[1]))


def encoded(
    kind: str, mode: str = "RGB", frames: int = 1, size: tuple[int, int] = (61, 43), **options: Any
) -> bytes:
    pictures = [noise(size, seed).convert(mode) for seed in range(frames)]
    if frames > 1:
        options |= {"save_all": True, "append_images": pictures[1:]}
    out = io.BytesIO()
    pictures[0].save(out, PILLOW[kind], **options)
    return out.getvalue()


def chunk(name: bytes, body: bytes) -> bytes:
    """A PNG chunk."""
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png_of(width: int, height: int, pixels: bytes | None = None, interlaced: bool = False) -> bytes:
    """A grey 8-bit PNG of ready-made scan lines; without them the header is all there is before the end."""
    data = b"\x89PNG\r\n\x1a\n" + chunk(
        b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, interlaced)
    )
    return data + (b"" if pixels is None else chunk(b"IDAT", zlib.compress(pixels))) + chunk(b"IEND", b"")


def interlaced_png(width: int = 37, height: int = 29) -> bytes:
    """Adam7, which Pillow reads but does not write."""
    rows = [random.Random(y).randbytes(width) for y in range(height)]
    passes = (
        (0, 8, 0, 8),
        (0, 8, 4, 8),
        (4, 8, 0, 4),
        (0, 4, 2, 4),
        (2, 4, 0, 2),
        (0, 2, 1, 2),
        (1, 2, 0, 1),
    )
    lines = (b"\0" + rows[y][x::dx] for y0, dy, x, dx in passes for y in range(y0, height, dy))
    return png_of(width, height, b"".join(lines), interlaced=True)


def strips_tiff(order: str = "<", big: bool = False, frames: int = 3) -> bytes:
    return write_tiff(
        [grey_page(20 + n, 30, random.Random(n).randbytes((20 + n) * 30), rows=7) for n in range(frames)],
        order,
        big,
    )


def tiled_tiff(
    width: int = 40, height: int = 20, tile: tuple[int, int] = (16, 16), tiles: Sequence[bytes] | None = None
) -> bytes:
    """Tiles of 8-bit grey, deflated."""
    number = -(-width // tile[0]) * -(-height // tile[1])
    tiles = tiles or [zlib.compress(random.Random(n).randbytes(tile[0] * tile[1])) for n in range(number)]
    tags: dict[int, tuple[Any, ...]] = {
        256: (4, width),
        257: (4, height),
        258: (3, 8),
        259: (3, 8),
        262: (3, 1),
        277: (3, 1),
        322: (4, tile[0]),
        323: (4, tile[1]),
    }
    return write_tiff([Page(tags, {324: list(tiles)})])


def rle_bmp() -> bytes:
    """Eight by two pixels as runs, which Pillow does not write."""
    pixels = b"\x08\x01\0\0\x08\x02\0\1"
    info = struct.pack("<IiiHHIIiiII", 40, 8, 2, 1, 8, 1, len(pixels), 0, 0, 4, 0)
    start = 14 + len(info) + 16
    return b"BM" + struct.pack("<IHHI", start + len(pixels), 0, 0, start) + info + bytes(16) + pixels


WHOLE: dict[str, bytes] = {
    "jpg": encoded("jpg"),
    "jpg grey": encoded("jpg", "L"),
    "jpg cmyk": encoded("jpg", "CMYK"),
    "jpg progressive": encoded("jpg", progressive=True),
    "png": encoded("png"),
    "png bits": encoded("png", "1"),
    "png palette": encoded("png", "P"),
    "png interlaced": interlaced_png(),
    "png animated": encoded("png", frames=3),
    "webp": encoded("webp"),
    "webp alpha": encoded("webp", "RGBA"),
    "webp lossless": encoded("webp", lossless=True),
    "webp extended": encoded("webp", icc_profile=b"x" * 101),
    "webp animated": encoded("webp", frames=3),
    "webp animated lossless": encoded("webp", frames=3, lossless=True),
    "gif": encoded("gif", "P"),
    "gif animated": encoded("gif", frames=3),
    "gif commented": encoded("gif", "P", comment=b"; not the end;" * 40),
    "bmp": encoded("bmp"),
    "bmp bits": encoded("bmp", "1"),
    "bmp runs": rle_bmp(),
    "tiff": encoded("tiff"),
    "tiff jpeg": encoded("tiff", compression="jpeg"),
    "tiff lzw": encoded("tiff", compression="tiff_lzw"),
    "tiff group4": encoded("tiff", "1", compression="group4"),
    "tiff strips": strips_tiff(frames=1),
    "tiff tiles": tiled_tiff(),
    "tiff frames": strips_tiff(),
    "tiff jpeg frames": encoded("tiff", frames=3, compression="jpeg"),
    "tiff motorola": strips_tiff(">"),
    "tiff big": strips_tiff("<", big=True),
}
"""Whole images by name; the first word is the format."""


def kind_of(name: str) -> str:
    return name.partition(" ")[0]


def gif_with_frame(screen: tuple[int, int], frame: tuple[int, int]) -> bytes:
    """A GIF whose first frame has another size than its screen."""
    data = bytearray(encoded("gif", "P"))
    data[6:10] = struct.pack("<HH", *screen)
    at = data.index(b"\x2c\0\0\0\0", 13 + 3 * 256)
    data[at + 5 : at + 9] = struct.pack("<HH", *frame)
    return bytes(data)


def jpeg_with_size(width: int, height: int, **options: Any) -> bytes:
    """A JPEG whose header claims another size."""
    data = bytearray(encoded("jpg", **options))
    at = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
    data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[271] = "maker"
    exif[274] = orientation
    return exif
