"""One image as measures see it: its bytes and header, and its pixels, decoded once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final, TypeVar

import numpy as np

from mm_assets.formats.images.errors import ImageError
from mm_assets.formats.images.pixels import Pixels, rgb_pixels, turned
from mm_assets.formats.images.probe import ImageInfo

T = TypeVar("T")

SMALL_SIDE: Final = 512
"""Pixels of the longer side of `ImageContent.small_luma`, at most."""


MOST_MEMORY: Final = 244 << 20
"""Bytes that an image may take while it is decoded, its file among them: a worker has 256 MiB."""


class ImageContent:
    """The bytes of an image, its header, and what is made of them when a measure first asks for it.

    Args:
        data: the image file.
        info: its header.
        max_pixels: an image of more pixels is not decoded.
        texts: the texts of its sample, in order.
    """

    def __init__(self, data: memoryview, info: ImageInfo, max_pixels: int, texts: Sequence[str] = ()) -> None:
        self.data = data
        self.info = info
        self.texts = texts
        self._max_pixels = max_pixels
        self._shared: dict[str, Any] = {}

    @property
    def pixels(self) -> Pixels:
        """RGB of each pixel, as stored (EXIF orientation not applied): height x width x 3.

        Raises:
            ImageError: the image cannot be decoded.
            TooMuchMemory: (an `ImageError`) it would take more than `MOST_MEMORY`.
        """
        if isinstance(self._decoded, ImageError):
            raise self._decoded
        return self._decoded

    @cached_property
    def _decoded(self) -> Pixels | ImageError:
        """The pixels, or why there are none: measures that ask again do not decode again."""
        try:
            return rgb_pixels(self.data, self.info.format, self._max_pixels, MOST_MEMORY)
        except ImageError as error:
            if isinstance(error.__cause__, MemoryError):
                raise error.__cause__ from None  # the machine's fault: it must not be stored as the image's
            return error

    @cached_property
    def luma(self) -> Pixels:
        """Brightness of each pixel (ITU-R BT.601): height x width.

        Raises:
            ImageError: the image cannot be decoded.
        """
        import cv2

        return np.asarray(cv2.cvtColor(self.pixels, cv2.COLOR_RGB2GRAY), np.uint8)

    @cached_property
    def small_luma(self) -> Pixels:
        """The luma scaled down so that its longer side has `SMALL_SIDE` pixels; a smaller one as it is.

        Raises:
            ImageError: the image cannot be decoded.
        """
        return scaled_down(self.luma, SMALL_SIDE)

    @cached_property
    def perceptual(self) -> tuple[str, int]:
        """The PDQ hash of the picture as displayed, 64 hexadecimal digits, and its quality, 0 to 100.

        It is turned as its EXIF orientation says before it is hashed: a copy that has been turned for good
        has the same hash.

        Raises:
            ImageError: the image cannot be decoded.
        """
        import pdqhash

        luma = turned(self.small_luma, self.info.orientation)
        bits, quality = pdqhash.compute(np.repeat(luma[..., None], 3, axis=2))
        return np.packbits(bits.astype(np.uint8)).tobytes().hex(), int(quality)

    def shared(self, key: str, make: Callable[[], T]) -> T:
        """Return what several measures of this image look at, made for the first of them."""
        if key not in self._shared:
            self._shared[key] = make()
        found: T = self._shared[key]
        return found


def scaled_down(luma: Pixels, side: int) -> Pixels:
    """Return a picture with at most ``side`` pixels in its longer side; each is the mean of an area."""
    import cv2

    height, width = luma.shape
    longer = max(height, width)
    if longer <= side:
        return luma
    size = max(1, round(width * side / longer)), max(1, round(height * side / longer))
    return np.asarray(cv2.resize(luma, size, interpolation=cv2.INTER_AREA), np.uint8)
