"""Filter by the length of the shorter side, in pixels."""

from __future__ import annotations

from dataclasses import dataclass

from mm_assets.filters.filter_settings import maximum, minimum
from mm_assets.filters.image_score import ImageScore
from mm_assets.filters.score_filter import ScoreFilter


@dataclass(frozen=True)
class ImageSizeFilter(ScoreFilter):
    """Drops images whose shorter side has fewer pixels than ``min_side`` or more than ``max_side``."""

    name = "image_size"

    min_side: int = minimum("image_side", int, "least pixels of the shorter side of the images that are kept")
    max_side: int = maximum("image_side", int, "most pixels of the shorter side of the images that are kept")

    def verdict(self, score: ImageScore) -> str | None:
        side = self.measure(score)
        if side < self.min_side:
            return "smaller than min_side"
        return "larger than max_side" if side > self.max_side else None

    def measure(self, score: ImageScore) -> int:
        return min(score.width, score.height)
