"""MinHash signatures: their share of equal values is the similarity of the sets of five words."""

from __future__ import annotations

import random

import numpy as np
import pytest

from mm_assets.filters.measure import SampleContent
from mm_assets.filters.minhash import MinHash, shingles, signature, words_of

WORDS = [f"w{number}" for number in range(5000)]


def similarity(one: str, other: str) -> float:
    values = [
        np.frombuffer(MinHash().measure(SampleContent([text], 0)) or b"", "<u2") for text in (one, other)
    ]
    return float((values[0] == values[1]).mean())


def jaccard(one: str, other: str) -> float:
    sets = [
        {tuple(words[n : n + 5]) for n in range(len(words) - 4)} for words in (one.split(), other.split())
    ]
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


@pytest.mark.parametrize(("length", "edits"), [(30, 1), (60, 2), (300, 4), (300, 12), (3000, 60)])
def test_estimate_is_the_jaccard_similarity(length: int, edits: int) -> None:
    draw = random.Random(0)
    errors = []
    for _ in range(60):
        words = draw.choices(WORDS, k=length)
        other = list(words)
        for place in draw.sample(range(length), edits):
            other[place] = "other"
        one, two = " ".join(words), " ".join(other)
        errors.append(similarity(one, two) - jaccard(one, two))
    assert abs(np.mean(errors)) < 0.02
    assert np.std(errors) < 0.055


def test_case_punctuation_and_breaks_do_not_count() -> None:
    text = " ".join(WORDS[:40])
    assert similarity(text, text.upper().replace(" ", ",\n", 5)) == 1
    content = [SampleContent(parts, 0) for parts in ([text], text.split())]
    assert MinHash().measure(content[0]) == MinHash().measure(content[1])


def test_short_texts_have_no_signature() -> None:
    assert MinHash().measure(SampleContent([" ".join(WORDS[:24])], 0)) is None
    assert MinHash().measure(SampleContent([], 3)) is None
    assert len(MinHash().measure(SampleContent([" ".join(WORDS[:25])], 0)) or b"") == 224


def test_words() -> None:
    assert words_of("It's \u00c4RGER, isn\u2019t it? \u4f60\u597d!") == [
        *(b"it", b"s", "\u00e4rger".encode(), "isn\u2019t".encode(), b"it"),
        *("\u4f60".encode(), "\u597d".encode()),
    ]
    assert words_of("\ud800") == [b"\xed\xa0\x80"]


def test_shingles_are_of_words_in_order() -> None:
    words = [b"a", b"b", b"c", b"d", b"e", b"f", b"a", b"b", b"c", b"d", b"e"]
    found = shingles(words, 5).tolist()
    assert len(found) == 7
    assert found[0] == found[6]
    assert len(set(found)) == 6
    assert shingles([b"a", b"b"], 5).tolist() != shingles([b"b", b"a"], 5).tolist()


def test_signatures_stay_as_they_are() -> None:
    """Stored ones are compared with new ones."""
    assert signature([word.encode() for word in WORDS[:50]])[:6].tolist() == [
        48660,
        24694,
        53115,
        61873,
        3287,
        48932,
    ]
