"""Filter of samples by the language of their texts."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from mm_assets.filters.filter_settings import FilterSettingError, minimum, setting
from mm_assets.filters.sample_filter import SampleFilter
from mm_assets.filters.sample_measures.languages import LANGUAGES
from mm_assets.filters.sample_scores import SampleScore

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
            if code not in LANGUAGES:
                near = get_close_matches(code[:2], LANGUAGES, n=1, cutoff=0.5)
                hint = f"the nearest is {near[0]}" if near else f"there are {', '.join(LANGUAGES)}"
                raise FilterSettingError(
                    "languages", f"{code!r} is no ISO 639-1 code of a language that is told apart; {hint}"
                )
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
