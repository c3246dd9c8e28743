"""Filters of images that are nothing but bounds of one score."""

from __future__ import annotations

from dataclasses import dataclass

from mm_assets.filters.bounds import Bounds
from mm_assets.filters.filter_settings import maximum, minimum
from mm_assets.filters.image_score import ImageScore
from mm_assets.filters.score_filter import ScoreFilter


@dataclass(frozen=True)
class ImageBounds(Bounds[ImageScore], ScoreFilter):
    """Refuses images whose score ``of`` is below ``least`` or above ``most``, if these are fields."""

    def measure(self, score: ImageScore) -> float | None:
        return score.value(self.of)


@dataclass(frozen=True)
class ByteSizeFilter(ImageBounds):
    """Refuses images whose file has too few or too many bytes."""

    name = of = "byte_size"

    least: int = minimum("byte_size", int, "least bytes of the images that are kept")
    most: int = maximum("byte_size", int, "most bytes of the images that are kept")


@dataclass(frozen=True)
class LongerSideFilter(ImageBounds):
    """Refuses images by the pixels of the longer side; `ImageSizeFilter` looks at the shorter one."""

    name = of = "longer_side"

    least: int = minimum("longer_side", int, "least pixels of the longer side of the images that are kept")
    most: int = maximum("longer_side", int, "most pixels of the longer side of the images that are kept")


@dataclass(frozen=True)
class SharpnessFilter(ImageBounds):
    """Refuses blurred images: those with little variance of the Laplacian, at native size."""

    name = of = "sharpness"
    scores = ("sharpness",)

    least: float = minimum(
        "sharpness", float, "least sharpness (variance of the Laplacian) of the images that are kept"
    )
    most: float = maximum("sharpness", float, "greatest sharpness of the images that are kept")


@dataclass(frozen=True)
class Sharpness512Filter(ImageBounds):
    """Refuses blurred images by their sharpness when the longer side is scaled down to 512 pixels."""

    name = of = "sharpness_512"
    scores = ("sharpness_512",)

    least: float = minimum(
        "sharpness_512", float, "least sharpness at 512 pixels of the images that are kept"
    )
    most: float = maximum(
        "sharpness_512", float, "greatest sharpness at 512 pixels of the images that are kept"
    )


@dataclass(frozen=True)
class QrAreaFilter(ImageBounds):
    """Refuses images that QR codes cover to a great part."""

    name = of = "qr_area"
    scores = ("qr_area",)

    most: float = maximum("qr_area", float, "greatest share (0..1) of an image that QR codes may cover")


@dataclass(frozen=True)
class EntropyFilter(ImageBounds):
    """Refuses images of few shades, such as blank pages and flat logos."""

    name = of = "entropy"
    scores = ("entropy",)

    least: float = minimum("entropy", float, "least entropy (0..8 bits) of the images that are kept")
    most: float = maximum("entropy", float, "greatest entropy of the images that are kept")


@dataclass(frozen=True)
class ClipSimilarityFilter(ImageBounds):
    """Refuses images that fit none of the texts of their sample, by a CLIP model."""

    name = of = "clip_similarity"
    scores = ("clip_similarity",)

    least: float = minimum(
        "clip_similarity", float, "least similarity (cosine) of an image and the best text of its sample"
    )
