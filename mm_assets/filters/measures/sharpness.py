"""Sharpness of an image: the variance of its Laplacian, as stored and at one size for all images."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from mm_assets.filters.measures.image_content import SMALL_SIDE, ImageContent
from mm_assets.filters.measures.image_measure import ImageMeasure
from mm_assets.filters.measures.laplacian import laplacian_variance


@dataclass(frozen=True)
class Sharpness(ImageMeasure):
    """Variance of the Laplacian over the red, green and blue of all pixels, at the size of the file.

    A photograph scaled up has less, a photograph scaled down has more; `SharpnessAtOneSize` can be compared
    between sizes.
    """

    name = "sharpness"
    library = "cv2"
    type = pa.float64()
    version = "1"
    meaning = "variance of the Laplacian over red, green and blue at native size, in squared levels of 0..255"

    def measure(self, image: ImageContent) -> float:
        return laplacian_variance(image.pixels)


@dataclass(frozen=True)
class SharpnessAtOneSize(ImageMeasure):
    """Variance of the Laplacian of the luma, scaled down so that the longer side has 512 pixels.

    A smaller image is measured as it is.
    """

    name = "sharpness_512"
    library = "cv2"
    type = pa.float64()
    version = "1"
    meaning = (
        f"variance of the Laplacian of the luma, longer side scaled down to {SMALL_SIDE} pixels, "
        "in squared levels of 0..255"
    )

    def measure(self, image: ImageContent) -> float:
        return laplacian_variance(image.small_luma)
