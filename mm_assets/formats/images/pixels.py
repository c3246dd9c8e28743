"""Pixels of an image as 8-bit RGB, decoded by Pillow within the same bounds as the decoding check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from .decode import decoding
from .decode_memory import TooMuchMemory, decoding_memory
from .raw_tiles import RawTile, raw_tiles
from .tiff_ifd import as_view
from .tiff_tags import ORIENTATION

if TYPE_CHECKING:
    from PIL.Image import Image

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
