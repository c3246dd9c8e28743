"""Perceptual hash of an image (PDQ), and how far it can be trusted."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from mm_assets.filters.measures.image_content import ImageContent
from mm_assets.filters.measures.image_measure import ImageMeasure


@dataclass(frozen=True)
class PerceptualHash(ImageMeasure):
    """PDQ hash of the picture as displayed.

    Near duplicates, such as an image encoded anew or scaled, differ in few of its 256 bits (31 or less by the
    convention of PDQ), other pictures in about half of them.
    """

    name = "perceptual_hash"
    library = "pdqhash"
    type = pa.string()
    version = "1"
    meaning = "PDQ hash of the picture as displayed, 256 bits as 64 hexadecimal digits"

    def measure(self, image: ImageContent) -> str:
        return image.perceptual[0]


@dataclass(frozen=True)
class PerceptualQuality(ImageMeasure):
    """Quality of the PDQ hash: of pictures with hardly any detail, hashes are alike by chance."""

    name = "perceptual_quality"
    library = "pdqhash"
    type = pa.int32()
    version = "1"
    meaning = "quality of the PDQ hash, 0 to 100; below 50 it says little"

    def measure(self, image: ImageContent) -> int:
        return image.perceptual[1]
