"""One image as measures see it: its bytes and header, and its pixels, decoded once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mm_assets.formats.images.decode import opened
from mm_assets.formats.images.probe import ImageInfo

Pixels = npt.NDArray[np.uint8]
T = TypeVar("T")


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

    @cached_property
    def pixels(self) -> Pixels:
        """RGB of each pixel, as stored (EXIF orientation not applied): height x width x 3.

        Raises:
            ImageError: the image cannot be decoded.
        """
        with opened(bytes(self.data), self.info.format, self._max_pixels) as image:
            return np.asarray(image.convert("RGB"))

    def shared(self, key: str, make: Callable[[], T]) -> T:
        """Return what several measures of this image look at, made for the first of them."""
        if key not in self._shared:
            self._shared[key] = make()
        found: T = self._shared[key]
        return found
