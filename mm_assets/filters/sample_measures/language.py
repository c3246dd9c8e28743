"""Language of a sample's texts, as py3langid tells it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from mm_assets.filters.sample_measures.sample_measure import SampleContent, SampleMeasure

CHARACTERS = 2048
"""Characters from the beginning of the texts that are looked at, in half a millisecond; a line is enough."""

LETTERS = 20
"""Least letters of these, counted in bytes of UTF-8.

So 20 Latin letters, 10 Cyrillic or Arabic ones and 7 Chinese ones are enough. Of fewer, one in ten and more
is told wrong.
"""

LEAST = 0.1
"""Least probability of a language that is told; names of products and repeated words stay below it."""

_FOUND = "language"  # in SampleContent.once


@dataclass(frozen=True)
class Language(SampleMeasure):
    """The language, as ISO 639-1 code."""

    name = "language"
    library = "py3langid"
    type = pa.string()
    version = "1"
    meaning = (
        "most probable language of the texts, as ISO 639-1 code such as en or zh, told from their first "
        f"{CHARACTERS} characters; null where they have too few letters, or words of no known language"
    )

    def measure(self, sample: SampleContent) -> str | None:
        found = _language(sample)
        return None if found is None else found[0]


@dataclass(frozen=True)
class LanguageProbability(SampleMeasure):
    """How probable the language is, among all that are known."""

    name = "language_probability"
    library = "py3langid"
    type = pa.float32()
    version = "1"
    meaning = "probability of the language, 0 to 1, in thousandths; null where there is no language"

    def measure(self, sample: SampleContent) -> float | None:
        found = _language(sample)
        return None if found is None else found[1]


def _language(sample: SampleContent) -> tuple[str, float] | None:
    """Return code and probability, found out once for both measures."""
    if _FOUND not in sample.once:
        sample.once[_FOUND] = _identify(sample.beginning(CHARACTERS))
    return sample.once[_FOUND]


def _identify(text: str) -> tuple[str, float] | None:
    if not _has_letters(text):
        return None
    code, probability = _identifier().classify(text)
    # Processors differ in the last digits, and equal texts shall have equal scores on all of them.
    probability = round(probability, 3)
    return (code, probability) if probability >= LEAST else None


def _has_letters(text: str) -> bool:
    found = 0
    for character in filter(str.isalpha, text):
        found += len(character.encode())
        if found >= LETTERS:
            return True
    return False


@cache
def _identifier() -> Any:
    """Return the model, loaded once a process: 0.6 s and 90 MB of memory."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    # Its other labels are dialects and rare languages, for which it takes short texts of large ones.
    identifier.set_languages([label for label in identifier.labels if len(label) == 2])
    # The selection is stored by column, and each text looks up hundreds of rows.
    identifier.nb_ptc = np.ascontiguousarray(identifier.nb_ptc)
    return identifier
