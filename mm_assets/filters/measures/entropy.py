"""Entropy of an image's brightness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from mm_assets.filters.measures.image_content import ImageContent
from mm_assets.filters.measures.image_measure import ImageMeasure

_STRIP: Final = 1 << 20  # pixels: OpenCV counts in 32-bit floating point, which is exact to 2**24


@dataclass(frozen=True)
class Entropy(ImageMeasure):
    """Shannon entropy of the histogram of the luma: 0 for a flat picture, 8 if all levels are as frequent."""

    name = "entropy"
    library = "cv2"
    type = pa.float64()
    version = "1"
    meaning = "Shannon entropy of the histogram of the luma, in bits (0 to 8)"

    def measure(self, image: ImageContent) -> float:
        import cv2

        rows = max(1, _STRIP // image.luma.shape[1])
        counts = np.zeros(256, np.int64)
        for top in range(0, image.luma.shape[0], rows):
            counted = cv2.calcHist([image.luma[top : top + rows]], [0], None, [256], [0, 256])
            counts += counted.ravel().astype(np.int64)
        shares = counts[counts > 0] / image.luma.size
        return float((shares * np.log2(1 / shares)).sum())
