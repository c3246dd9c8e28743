"""A plugin with measures that note each call in a file, also in worker processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from mm_assets.filters import SampleFilter, maximum, minimum
from mm_assets.filters.chain import ScoreFilter
from mm_assets.filters.measure import (
    DerivedMeasure,
    ImageContent,
    ImageMeasure,
    SampleContent,
    SampleMeasure,
)
from mm_assets.filters.scores import ImageScore, SampleScore


@dataclass(frozen=True)
class Brightness(ImageMeasure):
    name = "brightness"
    type = pa.float64()
    version = "1"
    meaning = "mean of all pixels"

    log: str = ""

    def measure(self, image: ImageContent) -> float:
        _note(self.log, self.name)
        return float(image.pixels.mean())


@dataclass(frozen=True)
class NewBrightness(Brightness):
    version = "2"


@dataclass(frozen=True)
class Halved(DerivedMeasure):
    name = "halved"
    of = "brightness"
    type = pa.float64()
    version = "1"
    meaning = "half of the brightness"

    def measure_all(self, values: Sequence[float | None]) -> Sequence[float | None]:
        return [None if value is None else value / 2 for value in values]


@dataclass(frozen=True)
class Letters(SampleMeasure):
    name = "letters"
    type = pa.int64()
    version = "1"
    meaning = "letters of all texts"

    log: str = ""

    def measure(self, sample: SampleContent) -> int:
        _note(self.log, self.name)
        return len(sample.text)


@dataclass(frozen=True)
class BrightnessFilter(ScoreFilter):
    name = "brightness"
    scores = ("brightness",)

    least: float = minimum("brightness", float, "least brightness")

    def verdict(self, score: ImageScore) -> str | None:
        return "too dark" if score.value("brightness") < self.least else None


@dataclass(frozen=True)
class LettersFilter(SampleFilter):
    name = "letters"
    scores = ("letters",)

    most: int = maximum("letters", int, "most letters")

    def verdict(self, score: SampleScore) -> str | None:
        return "too long" if score.value("letters") > self.most else None


FILTERS = (BrightnessFilter, LettersFilter)
MEASURES: tuple[ImageMeasure | SampleMeasure, ...] = (Brightness(), Halved(), Letters())


def calls(log: Path) -> dict[str, int]:
    """Return how often each measure was taken, and forget it."""
    lines = log.read_text().split() if log.exists() else []
    log.unlink(missing_ok=True)
    return dict(Counter(lines))


def _note(log: str, name: str) -> None:
    with open(log, "a") as file:
        file.write(f"{name}\n")
