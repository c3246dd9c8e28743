"""Share of a sample's texts that repeats five words that stood before."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from mm_assets.filters.sample_measures.sample_measure import SampleContent, SampleMeasure

WORDS = 5
"""Words of an n-gram."""

CHARACTERS = 1_000_000
"""Characters from the beginning of the texts that are looked at, a bound on memory."""


@dataclass(frozen=True)
class Repetition(SampleMeasure):
    """The fraction of characters in duplicate 5-grams.

    Words are separated by white space and compared as they are, with case and punctuation. An n-gram is any
    five words in a row, also across lines and texts. One that is equal to an earlier one is a duplicate; the
    first of its kind is none. The value is the characters of all words that lie in a duplicate, each word
    counted once, divided by the characters of all words.

    Gopher (Rae et al. 2021, table A1) has a rule like it and drops documents above 0.15. Texts in scripts
    without spaces have few words: there `repeated_lines` tells more.
    """

    name = "repetition"
    type = pa.float32()
    version = "1"
    meaning = (
        f"share of the characters of words that lie in {WORDS} words which stood before in the same order, "
        f"0 to 1, in the first {CHARACTERS:,} characters of the texts; null where there is no word"
    )

    def measure(self, sample: SampleContent) -> float | None:
        words = sample.beginning(CHARACTERS).split()
        if not words:
            return None
        seen: set[tuple[str, ...]] = set()
        repeated = 0
        counted = 0  # words up to here are in the sum, or in no duplicate
        for start, gram in enumerate(zip(*(words[offset:] for offset in range(WORDS)), strict=False)):
            if gram in seen:
                repeated += sum(map(len, words[max(start, counted) : start + WORDS]))
                counted = start + WORDS
            else:
                seen.add(gram)
        return repeated / sum(map(len, words))
