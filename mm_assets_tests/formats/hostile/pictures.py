"""Images that are cut, that lie about their size, or that are none; and TIFFs of several frames."""

from __future__ import annotations

import io
import random
import struct
import zlib
from typing import Any

from PIL import Image

from mm_assets_tests.formats.images.tiff_tools import grey_page, write_tiff


def photograph(kind: str, **options: Any) -> bytes:
    """A picture of 64 x 48 pixels that compresses badly, so that half of its file is half of its pixels."""
    out = io.BytesIO()
    _noise(64, 48).save(out, kind, **options)
    return out.getvalue()


def tiff_of(pages: int, **options: Any) -> bytes:
    """Frames of different sizes and noise."""
    frames = [_noise(24 + n, 16) for n in range(pages)]
    out = io.BytesIO()
    frames[0].save(out, "TIFF", save_all=True, append_images=frames[1:], **options)
    return out.getvalue()


def grey_tiff(pages: int) -> bytes:
    """Frames of one uncompressed strip each; a frame's pixels lie before its directory, the last directory at
    the end.
    """
    return write_tiff([grey_page(8 + n, 6, bytes(range((8 + n) * 6))) for n in range(pages)])


def big_tiff(pages: int, order: str = "<") -> bytes:
    """BigTIFF, whose frames have several strips."""
    return write_tiff(
        [grey_page(8 + n, 6, bytes(range((8 + n) * 6)), rows=2) for n in range(pages)], order, big=True
    )


def with_tag(tiff: bytes, frame: int, tag: int, value: int) -> bytes:
    """A little-endian classic TIFF with the value field of one tag of one frame changed."""
    data = bytearray(tiff)
    at = struct.unpack_from("<I", data, 4)[0]
    for _ in range(frame):
        at = struct.unpack_from("<I", data, at + 2 + 12 * struct.unpack_from("<H", data, at)[0])[0]
    for entry in range(at + 2, at + 2 + 12 * struct.unpack_from("<H", data, at)[0], 12):
        if struct.unpack_from("<H", data, entry)[0] == tag:
            struct.pack_into("<I", data, entry + 8, value)
            return bytes(data)
    raise LookupError(f"no tag {tag} in frame {frame}")


def directory_of(tiff: bytes, frame: int) -> int:
    """Byte offset of a frame's directory in a little-endian classic TIFF."""
    at: int = struct.unpack_from("<I", tiff, 4)[0]
    for _ in range(frame):
        at = struct.unpack_from("<I", tiff, at + 2 + 12 * struct.unpack_from("<H", tiff, at)[0])[0]
    return at


def png_of(width: int, height: int, bits: int, pixels: bytes) -> bytes:
    """A grey PNG of these compressed pixels, whatever its header says."""
    parts = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)),
        (b"IDAT", pixels),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in parts
    )


def real_png_bomb() -> bytes:
    """A sound PNG of 600 megapixels in 75 kilobytes."""
    row = 1 + 30_000 // 8
    packer = zlib.compressobj(wbits=-15)
    rows = packer.compress(bytes(100 * row)) + packer.flush(zlib.Z_FULL_FLUSH)  # as if alone
    checksum = struct.pack(">HH", 20_000 * row % 65_521, 1)
    return png_of(30_000, 20_000, 1, b"\x78\x9c" + rows * 200 + packer.flush() + checksum)


def gif_of_size(width: int, height: int) -> bytes:
    data = bytearray(photograph("GIF"))
    struct.pack_into("<HH", data, 6, width, height)
    return bytes(data)


def bmp_of_size(width: int, height: int) -> bytes:
    data = bytearray(photograph("BMP"))
    struct.pack_into("<ii", data, 18, width, height)
    return bytes(data)


def jpg_of_size(width: int, height: int) -> bytes:
    data = bytearray(photograph("JPEG"))
    at = data.index(b"\xff\xc0")
    struct.pack_into(">HH", data, at + 5, height, width)
    return bytes(data)


def _noise(width: int, height: int) -> Image.Image:
    pick = random.Random(width)
    levels = bytes(pick.choices(range(64, 192), k=width * height))
    return Image.frombytes("L", (width, height), levels).convert("RGB")
