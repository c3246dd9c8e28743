"""Repeated words and lines: exact shares, odd texts, and both bounds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_assets.filters import measures
from mm_assets.filters.measure import SampleContent
from mm_assets.filters.measures import RepeatedLines, Repetition


def repeated(*texts: str) -> float | None:
    return Repetition().measure(SampleContent(texts, 0))


def lines(*texts: str) -> float | None:
    return RepeatedLines().measure(SampleContent(texts, 0))


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("a b c d e", 0.0),
        ("a b c d e f a b c d", 0.0),  # four in a row are no n-gram
        ("a b c d e a b c d e", 5 / 10),
        ("a b c d e x a b c d e", 5 / 11),
        ("a b c d e f x a b c d e f", 6 / 13),  # two n-grams that overlap: each word once
        ("a b c d e a b c d e a b c d e", 10 / 15),
        ("a b c d e a b c d E", 0.0),  # case tells words apart
        ("aa b c d e aa b c d e", 6 / 12),  # shares are of characters
        ("a a a a a a", 5 / 6),
        ("a a a a", 0.0),
    ],
)
def test_share_of_repeated_words(text: str, share: float) -> None:
    assert repeated(text) == share
    assert repeated(*text.split()) == share, "n-grams run across texts"
    assert repeated(text.replace(" ", "\u00a0 \n")) == share, "white space does not count"


@pytest.mark.parametrize(
    ("texts", "share"),
    [
        (("one\ntwo\nthree",), 0.0),
        (("one\ntwo\none",), 3 / 9),
        (("one\n\n\ntwo\n  one \t\n",), 3 / 9),
        (("one", "two", "one"), 3 / 9),
        (("one\r\none\rone",), 6 / 9),
        (("一行\n一行",), 2 / 4),
        (("שלום\nשלום",), 4 / 8),
    ],
)
def test_share_of_repeated_lines(texts: Sequence[str], share: float) -> None:
    assert lines(*texts) == share


@pytest.mark.parametrize("texts", [(), ("",), (" \n\t", "\u00a0\u2003\n")])
def test_no_words_no_share(texts: Sequence[str]) -> None:
    assert (repeated(*texts), lines(*texts)) == (None, None)


@pytest.mark.parametrize("text", ["😀" * 9, "没有空格的中文没有空格的中文", "\u0301\u0301", "x" * 5_000_000])
def test_one_word_repeats_nothing(text: str) -> None:
    assert (repeated(text), lines(text)) == (0.0, 0.0)


def test_only_the_beginning_counts() -> None:
    words = measures.CHARACTERS // 2
    assert repeated("a " * words + "b c d e f " * 100_000) == (words - 1) / words
    assert repeated(*["a"] * 3_000_000) == (words - 1) / words
    assert lines("a\n" * words + "b\n" * 1_000_000) == (words - 1) / words
    assert measures.CHARACTERS == measures.CHARACTERS


@given(st.lists(st.sampled_from(["a", "bb", "ccc"]), min_size=1, max_size=40))
def test_as_defined(words: list[str]) -> None:
    grams = [words[start : start + 5] for start in range(len(words) - 4)]
    inside = {
        start + offset for start, gram in enumerate(grams) if gram in grams[:start] for offset in range(5)
    }
    share = sum(len(words[place]) for place in inside) / sum(map(len, words))
    assert repeated(" ".join(words)) == share


@given(st.lists(st.text("ab\n ", max_size=8), max_size=5), st.integers(1, 30))
def test_the_beginning_of_texts_is_that_of_their_sum(texts: list[str], characters: int) -> None:
    sample = SampleContent(texts, 0)
    assert sample.beginning(characters) == sample.text[:characters]
