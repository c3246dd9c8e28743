"""Measuring of images: each is decoded at most once, for all its measures, and none is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mm_assets.filters.measures.image_content import ImageContent
from mm_assets.filters.measures.image_measure import BatchedMeasure, ImageMeasure


class ImageMeasurer:
    """Takes measures of one image after the other.

    Values of measures that take many images at once are there after `finish` at the latest.
    """

    def __init__(self, measures: Sequence[ImageMeasure]) -> None:
        self._measures = measures
        self._waiting: dict[str, list[tuple[dict[str, Any], Any]]] = {
            measure.name: [] for measure in measures if isinstance(measure, BatchedMeasure)
        }

    def measure(self, image: ImageContent) -> dict[str, Any]:
        """Return the values of one image by measure; those that come later are added to the same dict.

        Raises:
            ImageError: the image cannot be decoded.
        """
        found = {measure.name: measure.measure(image) for measure in self._measures}
        values = {name: value for name, value in found.items() if name not in self._waiting}
        for measure in self._measures:
            if isinstance(measure, BatchedMeasure):
                waiting = self._waiting[measure.name]
                waiting.append((values, found[measure.name]))
                if len(waiting) >= measure.batch_size:
                    self._take(measure)
        return values

    def finish(self) -> None:
        """Take the measures of the images that still wait."""
        for measure in self._measures:
            if isinstance(measure, BatchedMeasure):
                self._take(measure)

    def _take(self, measure: BatchedMeasure) -> None:
        waiting = self._waiting[measure.name]
        if waiting:
            taken = measure.measure_all([kept for _, kept in waiting])
            for (values, _), value in zip(waiting, taken, strict=True):
                values[measure.name] = value
            waiting.clear()
