"""SHA-256 of an image file."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import pyarrow as pa

from mm_assets.filters.measures.image_content import ImageContent
from mm_assets.filters.measures.image_measure import ImageMeasure


@dataclass(frozen=True)
class Sha256(ImageMeasure):
    """SHA-256 of the file's bytes: equal for exact copies alone. Nothing is decoded."""

    name = "sha256"
    decodes = False
    type = pa.string()
    version = "1"
    meaning = "SHA-256 of the file's bytes, 64 hexadecimal digits"

    def measure(self, image: ImageContent) -> str:
        return hashlib.sha256(image.data).hexdigest()
