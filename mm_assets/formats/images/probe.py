"""Image format and size from the header; pixels are never decoded."""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from threading import Lock
from typing import Final

from .errors import ImageError
from .headers import PARSERS
from .tiff_ifd import as_view
from .tiff_tags import HEIGHT, ORIENTATION, WIDTH

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
_u32le: Final = struct.Struct("<I").unpack_from
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
