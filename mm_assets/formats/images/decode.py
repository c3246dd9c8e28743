"""Whether the pixels of an image can be had: Pillow decodes it, within bounds on memory and time."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from .errors import DecompressionBomb, ImageError

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile
    from PIL.TiffImagePlugin import TiffImageFile

# What a hostile file can cost, as multiples of the pixels allowed; real ones stay far below.
_MAX_SCANS: Final = 64  # of a JPEG: each is a pass over all its pixels
_MAX_TOTAL: Final = 8  # all frames of a TIFF together
_MAX_FRAMES: Final = 4096
_PADDING: Final = 16  # bytes
_TILE_SIDES: Final = (322, 323)  # TIFF tags
_PNG_SIGNATURE: Final = 8  # bytes

_chunk: Final = struct.Struct(">I4s").unpack_from
_crc: Final = struct.Struct(">I").unpack_from


def refuse_bomb(width: int, height: int, max_pixels: int, scans: int = 1) -> None:
    """Raises `DecompressionBomb` for more than `max_pixels`, or for as many passes over them as no real file
    needs.
    """
    if width * height > max_pixels:
        raise DecompressionBomb(f"{width}x{height} pixels, at most {max_pixels}")
    if width * height * scans > max_pixels * _MAX_SCANS:
        raise DecompressionBomb(f"{width}x{height} pixels in {scans} scans")


def decode(data: bytes | bytearray | memoryview, kind: str, max_pixels: int) -> bool:
    """Decode an image of format `kind` (as `probe` tells) and throw the pixels away.

    Of a TIFF every frame, of animations the first. True when all of them were decoded; False when a TIFF has
    so many frames, or so many pixels in all of them, that not all were tried, and those that were are sound.

    Raises `ImageError` when Pillow cannot decode it, and `DecompressionBomb` (an `ImageError`), before any
    pixel is touched, for a frame of more than `max_pixels` pixels.
    """
    from PIL import Image

    raw = bytes(data)
    if kind == "jpg":
        # libjpeg decodes the zeros that stand in the place of a lost body; a few are padding, and help where
        # only the end marker is lost.
        raw = raw[: len(raw.rstrip(b"\0")) + _PADDING]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")
        try:
            with _opened(raw, kind) as image:
                if kind == "tiff":
                    return _load_frames(image, max_pixels)  # type: ignore[arg-type]
                # Measured once more: Pillow grows the screen of a GIF to its first frame.
                refuse_bomb(*image.size, max_pixels, raw.count(b"\xff\xda") if kind == "jpg" else 1)
                # All of a JPEG is parsed, but every block becomes one pixel: a third of the time, little
                # memory. Others know no draft.
                image.draft(None, (1, 1))
                image.load()
                if kind == "png":
                    _check_pixel_crcs(raw)
                return True
        except ImageError:
            raise
        except Image.DecompressionBombError as error:  # Pillow's own limit, which some of its plugins ask
            raise DecompressionBomb(str(error)) from error
        except Exception as error:  # plugins raise whatever their parser tripped over
            raise ImageError(" ".join(str(error).split()) or type(error).__name__) from error


def _opened(raw: bytes, kind: str) -> ImageFile:
    """The image with its header read. By class: `Image.open` has limits and warnings of its own."""
    from PIL import (
        BmpImagePlugin,
        GifImagePlugin,
        JpegImagePlugin,
        PngImagePlugin,
        TiffImagePlugin,
        WebPImagePlugin,
    )

    readers: dict[str, Callable[[io.BytesIO, str], ImageFile]] = {
        "jpg": JpegImagePlugin.JpegImageFile,
        "png": PngImagePlugin.PngImageFile,
        "webp": WebPImagePlugin.WebPImageFile,
        "gif": GifImagePlugin.GifImageFile,
        "bmp": BmpImagePlugin.BmpImageFile,
        "tiff": TiffImagePlugin.TiffImageFile,
    }
    return readers[kind](io.BytesIO(raw), "")


def _check_pixel_crcs(png: bytes) -> None:
    """Zeros in the place of a lost body may be pixels to Pillow, which looks at no checksum of them.

    Raises ``ImageError``.
    """
    view = memoryview(png)
    at = _PNG_SIGNATURE
    while at + 12 <= len(view):
        length, name = _chunk(view, at)
        end = at + 8 + length
        if name == b"IDAT" and end + 4 <= len(view) and zlib.crc32(view[at + 4 : end]) != _crc(view, end)[0]:
            raise ImageError("the checksum of its pixels is another")
        if name == b"IEND":
            return
        at = end + 4


def _load_frames(image: TiffImageFile, max_pixels: int) -> bool:
    total = 0
    for frame in range(_MAX_FRAMES):
        try:
            image.seek(frame)
        except EOFError:
            return True
        width, height = image.size
        refuse_bomb(width, height, max_pixels)
        tile_width, tile_height = (image.tag_v2.get(tag, 0) for tag in _TILE_SIDES)
        refuse_bomb(tile_width, tile_height, max_pixels)  # libtiff makes room for a whole tile
        total += width * height
        if total > max_pixels * _MAX_TOTAL:
            return False
        image.load()
    return False
