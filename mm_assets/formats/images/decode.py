"""Decoding check of images: Pillow decodes an image, within bounds on memory and time.

`lossless_file` is the way back: the file of a picture. A `MemoryFile` is a file in memory that is read
without a copy of its own.
"""

from __future__ import annotations

import ctypes
import io
import re
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from mm_assets.formats.images.tiff_directories import as_view
from mm_assets.model.errors import DecompressionBomb, ImageError
from mm_assets.storage.files import regular_file

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFile import ImageFile
    from PIL.TiffImagePlugin import TiffImageFile


MAX_PIXELS: Final = 178_956_970
"""Pillow's own limit for opening an image: twice its `Image.MAX_IMAGE_PIXELS`."""

_WORTH_IT: Final = 1 << 20  # bytes: a smaller file is copied sooner than it is read through Python


class MemoryFile(io.RawIOBase):
    """The bytes of a view as a file.

    Args:
        data: bytes, which must not change or go away.
    """

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence]
        if origin + offset < 0:
            raise ValueError(f"negative seek value {origin + offset}")
        self._at = origin + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Return up to ``size`` bytes; Pillow asks for as many as a file claims to have."""
        left = max(0, len(self._data) - self._at)
        end = self._at + (left if size is None or size < 0 else min(size, left))
        data = bytes(self._data[self._at : end])
        self._at += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        into = memoryview(buffer).cast("B")
        found = self._data[self._at : self._at + len(into)]
        into[: len(found)] = found
        self._at += len(found)
        return len(found)

    def getvalue(self) -> memoryview:
        """Return all bytes; Pillow hands them to libtiff."""
        return self._data


def memory_file(data: bytes | memoryview) -> io.BytesIO | MemoryFile:
    """Return a file of some bytes; large ones are not copied."""
    if isinstance(data, bytes) or len(data) < _WORTH_IT:
        return io.BytesIO(data)  # which shares bytes
    return MemoryFile(data)


# Limits on the cost of a malicious file, as multiples of the pixels allowed; real ones stay far below.
_MAX_SCANS: Final = 64  # of a JPEG: each is a pass over all its pixels
_MAX_TOTAL: Final = 8  # all frames of a TIFF together
_MAX_FRAMES: Final = 4096
_PADDING: Final = 16  # bytes
_TILE_SIDES: Final = (322, 323)  # TIFF tags
_PNG_SIGNATURE: Final = 8  # bytes

_SCAN: Final = re.compile(rb"\xff\xda")
_END: Final = 4096  # bytes looked at once

_chunk: Final = struct.Struct(">I4s").unpack_from
_crc: Final = struct.Struct(">I").unpack_from


def refuse_bomb(width: int, height: int, max_pixels: int, scans: int = 1) -> None:
    """Refuse an image that would be too expensive to decode.

    Raises:
        DecompressionBomb: It has more than ``max_pixels`` pixels, or more passes (scans) over them than any
            real file needs.
    """
    if width * height > max_pixels:
        raise DecompressionBomb(f"{width}x{height} pixels, at most {max_pixels}")
    if width * height * scans > max_pixels * _MAX_SCANS:
        raise DecompressionBomb(f"{width}x{height} pixels in {scans} scans")


def decode(data: bytes | bytearray | memoryview, kind: str, max_pixels: int) -> bool:
    """Decode an image and discard the pixels.

    All frames of a TIFF are decoded; of an animation only the first.

    Args:
        data: The image file.
        kind: Its format, as returned by `probe`.
        max_pixels: Limit for one frame.

    Returns:
        True if all frames were decoded. False if a TIFF has too many frames, or too many pixels in all of
        them, to try all; those that were tried are sound.

    Raises:
        ImageError: Pillow cannot decode it.
        DecompressionBomb: (an `ImageError`) A frame has more than ``max_pixels`` pixels. No pixel of it has
            been decoded.
    """

    with decoding(data, kind, max_pixels) as image:
        if kind == "tiff":
            return _load_frames(image, max_pixels)  # type: ignore[arg-type]
        # A draft parses all of a JPEG, but makes one pixel of every block: a third of the time, and
        # little memory. It has no effect on other formats.
        image.draft(None, (1, 1))
        image.load()
        return True


@contextmanager
def decoding(data: bytes | bytearray | memoryview, kind: str, max_pixels: int) -> Iterator[ImageFile]:
    """Open an image, as `opened` does, for a block that decodes its first frame.

    Raises:
        ImageError: for whatever Pillow raises in the block; for a PNG whose pixels have a wrong checksum.
        DecompressionBomb: (an `ImageError`) it would be too expensive to decode.
    """
    from PIL import Image

    raw: bytes | memoryview = data if isinstance(data, bytes) else as_view(data)
    if kind == "jpg":
        # libjpeg would decode zeros in the place of a lost body as pixels. A few of them are kept as padding:
        # they help if only the end marker is lost.
        raw = raw[: _without_zeros(raw) + _PADDING]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="PIL")
        try:
            with opened(raw, kind, max_pixels) as image:
                yield image
            if kind == "png":
                _check_pixel_crcs(raw)
        except ImageError:
            raise
        except Image.DecompressionBombError as error:  # Pillow's own limit, checked by some plugins
            raise DecompressionBomb(str(error)) from error
        except Exception as error:  # plugins raise whatever their parser runs into
            raise ImageError(" ".join(str(error).split()) or type(error).__name__) from error


def opened(raw: bytes | memoryview, kind: str, max_pixels: int) -> ImageFile:
    """Return an image with its header read and nothing decoded, if it may be decoded.

    Opened by class, because `Image.open` has limits and warnings of its own.

    Args:
        kind: Its format, as returned by `probe`.
        max_pixels: Limit for the image, and for a tile of it.

    Raises:
        DecompressionBomb: It would be too expensive to decode.
        ImageError: The sides of a tile are not numbers.
    """
    image = pillow_image(raw, kind)
    # Checked again: Pillow enlarges the screen of a GIF to its first frame.
    refuse_bomb(*image.size, max_pixels, sum(1 for _ in _SCAN.finditer(raw)) if kind == "jpg" else 1)
    if kind == "tiff":
        _refuse_tile(image, max_pixels)  # type: ignore[arg-type]
    return image


def pillow_image(raw: bytes | memoryview, kind: str) -> ImageFile:
    """Return an image as `PIL.Image.open` does, but for its limit of pixels; raise whatever Pillow raises."""
    return _pillow_readers()[kind](memory_file(raw), "")


@cache
def _pillow_readers() -> dict[str, Callable[[Any, str], ImageFile]]:
    from PIL import (
        BmpImagePlugin,
        GifImagePlugin,
        JpegImagePlugin,
        PngImagePlugin,
        TiffImagePlugin,
        WebPImagePlugin,
    )

    _silence_libtiff()
    return {
        "jpg": JpegImagePlugin.JpegImageFile,
        "mpo": JpegImagePlugin.jpeg_factory,
        "png": PngImagePlugin.PngImageFile,
        "webp": WebPImagePlugin.WebPImageFile,
        "gif": GifImagePlugin.GifImageFile,
        "bmp": BmpImagePlugin.BmpImageFile,
        "tiff": TiffImagePlugin.TiffImageFile,
    }


def _silence_libtiff() -> None:
    """Keep Pillow's libtiff from printing lines to stderr that name no file: what fails is raised as well."""
    from PIL import _imaging

    libtiff = ctypes.CDLL(_imaging.__file__)  # symbols are looked up in what it is linked with, too
    for name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):
        if hasattr(libtiff, name):  # not where libtiff is linked into Pillow without its names
            getattr(libtiff, name)(None)


def _without_zeros(data: bytes | memoryview) -> int:
    """Return the length of data without the zeros at their end."""
    end = len(data)
    while end:
        start = max(0, end - _END)
        if last := bytes(data[start:end]).rstrip(b"\0"):
            return start + len(last)
        end = start
    return 0


def _check_pixel_crcs(png: bytes | memoryview) -> None:
    """Check the checksums of a PNG's pixel chunks.

    Pillow ignores them, so zeros in the place of a lost body may pass as pixels.

    Raises:
        ImageError: A checksum is wrong.
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
        _refuse_tile(image, max_pixels)
        total += width * height
        if total > max_pixels * _MAX_TOTAL:
            return False
        image.load()
    return False


def _refuse_tile(image: TiffImageFile, max_pixels: int) -> None:
    """Refuse a TIFF whose frame has a tile of too many pixels: libtiff allocates a whole one."""
    width, height = (image.tag_v2.get(tag, 0) for tag in _TILE_SIDES)
    # A tag may be of any type: a text times a number would be as long as the file's author likes.
    if type(width) is not int or type(height) is not int:
        raise ImageError("the sides of a tile are not numbers")
    refuse_bomb(width, height, max_pixels)


_PNG_MODES: Final = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


def lossless_file(image: Image) -> bytes:
    """Return a file of a picture, without loss.

    That is the file it was opened from, if it has its pixels still; else a new one. The same pixels give the
    same bytes.

    Raises:
        ValueError: no format has its mode.
    """
    return _file_of(image) or _encoded(image)


def _encoded(image: Image) -> bytes:
    file = io.BytesIO()
    try:
        image.save(file, "PNG" if image.mode in _PNG_MODES else "TIFF")
    except (OSError, KeyError) as error:
        raise ValueError(f"a picture of mode {image.mode} has no lossless file: {error}") from error
    return file.getvalue()


def _file_of(image: Image) -> bytes | None:
    """Return the file that a picture was opened from, if it has its pixels still; None if not, or unknown."""
    from PIL.Image import open as open_image
    from PIL.ImageFile import ImageFile

    if not isinstance(image, ImageFile) or image.tell():  # a later frame is no whole file
        return None
    is_loaded = not image.tile
    stream = image.fp
    try:
        if isinstance(image.filename, str) and image.filename:
            with open(regular_file(image.filename), "rb") as file:
                data = file.read()
        elif isinstance(stream, io.BytesIO):
            data = stream.getvalue()
        else:
            return None
        with open_image(io.BytesIO(data)) as original:
            if original.size != image.size or original.mode != image.mode:
                return None
            is_same = not is_loaded or (
                original.tobytes() == image.tobytes() and original.getpalette() == image.getpalette()
            )
    except (OSError, ValueError, SyntaxError):  # the file has gone, or changed
        return None
    return data if is_same else None
