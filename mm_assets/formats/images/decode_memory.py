"""How much memory it takes to decode an image, as Pillow and its libraries do it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .errors import ImageError
from .tiff_tags import ORIENTATION

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

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
