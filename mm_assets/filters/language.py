"""Filter of samples by the language of their texts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mm_assets.filters.filter_settings import minimum, setting
from mm_assets.filters.sample_filter import SampleFilter
from mm_assets.filters.sample_scores import SampleScore

_CODE = re.compile("[a-z]{2}")
_LANGUAGE, _PROBABILITY = "language", "language_probability"


@dataclass(frozen=True)
class LanguageFilter(SampleFilter):
    """Refuses samples in other languages, or in one that was hard to tell.

    Samples whose texts are too short for a guess are refused, too.
    """

    name = "language"
    scores = (_LANGUAGE, _PROBABILITY)

    languages: tuple[str, ...] = setting(
        "languages", tuple, (), "languages of the samples that are kept: ISO 639-1 codes such as en,de"
    )
    least: float = minimum(
        _PROBABILITY, float, "least probability (0..1) of the language of the samples that are kept"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "languages", tuple(code.lower() for code in self.languages))
        for code in self.languages:
            if not _CODE.fullmatch(code):
                raise ValueError(f"languages: {code!r} is no ISO 639-1 code, such as en")
        if self.least > 1:
            raise ValueError(f"min_language_probability is at most 1, not {self.least:g}")

    def verdict(self, score: SampleScore) -> str | None:
        language = score.value(_LANGUAGE)
        if language is None:
            return "of no language that could be told"
        if self.languages and language not in self.languages:
            return "of another language"
        return None if score.value(_PROBABILITY) >= self.least else "less than min_language_probability"

    def measure(self, score: SampleScore) -> float | None:
        return score.value(_PROBABILITY)
