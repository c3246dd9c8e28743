"""Filters of samples that are nothing but bounds of one score."""

from __future__ import annotations

from dataclasses import dataclass

from mm_assets.filters.bounds import Bounds
from mm_assets.filters.filter_settings import maximum, minimum
from mm_assets.filters.sample_filter import SampleFilter
from mm_assets.filters.sample_scores import SampleScore


@dataclass(frozen=True)
class SampleBounds(Bounds[SampleScore], SampleFilter):
    """Refuses samples whose score ``of`` is below ``least`` or above ``most``, if these are fields."""

    def measure(self, score: SampleScore) -> float | None:
        return score.value(self.of)


@dataclass(frozen=True)
class ImageCountFilter(SampleBounds):
    """Refuses samples with too few or too many images, as the filters of images have left them."""

    name = of = "images"

    least: int = minimum("images", int, "least images of the samples that are kept")
    most: int = maximum("images", int, "most images of the samples that are kept")


@dataclass(frozen=True)
class WordCountFilter(SampleBounds):
    """Refuses samples with too few or too many words in all their texts."""

    name = of = "words"

    least: int = minimum("words", int, "least words of the samples that are kept")
    most: int = maximum("words", int, "most words of the samples that are kept")


@dataclass(frozen=True)
class ImagesPerWordFilter(SampleBounds):
    """Refuses samples by their images for each word; a sample without words counts as one of one word."""

    name = of = "images_per_word"

    least: float = minimum(
        "images_per_word", float, "least images for each word of the samples that are kept"
    )
    most: float = maximum("images_per_word", float, "most images for each word of the samples that are kept")


@dataclass(frozen=True)
class RepetitionFilter(SampleBounds):
    """Refuses samples whose texts repeat themselves."""

    name = of = "repetition"
    scores = ("repetition",)

    most: float = maximum(
        "repetition", float, "greatest share (0..1) of words in passages that occurred before in the sample"
    )
