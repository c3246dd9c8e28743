"""Filter by aspect ratio (width/height)."""

from __future__ import annotations

from dataclasses import dataclass

from mm_assets.filters.filter_settings import maximum, minimum
from mm_assets.filters.image_score import ImageScore
from mm_assets.filters.score_filter import ScoreFilter


@dataclass(frozen=True)
class AspectRatioFilter(ScoreFilter):
    """Drops images with width/height outside ``min_ratio..max_ratio``.

    Both bounds are inclusive; EXIF orientation is honoured.
    """

    name = "aspect_ratio"

    min_ratio: float = minimum("aspect_ratio", float, "least width/height of the images that are kept")
    max_ratio: float = maximum("aspect_ratio", float, "greatest width/height of the images that are kept")

    def verdict(self, score: ImageScore) -> str | None:
        if score.aspect_ratio < self.min_ratio:
            return "narrower than min_ratio"
        return "wider than max_ratio" if score.aspect_ratio > self.max_ratio else None

    def measure(self, score: ImageScore) -> float:
        return score.aspect_ratio
