"""Uncompressed pictures: their pixels lie in the file, and are taken from there a band of rows at a time.

Pillow would make a picture of all of them first, with four bytes for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

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
