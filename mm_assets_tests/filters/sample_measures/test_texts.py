"""Measures of each text: exact values, odd scripts, both bounds, and what they come to for a sample."""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_assets.filters import texts
from mm_assets.filters.measure import MeasureFileError, SampleContent, SampleMeasure, column_of
from mm_assets.filters.measures import SAMPLE_MEASURES, selected_measures
from mm_assets.filters.scores import SampleScores, score_samples
from mm_assets.filters.texts import OF_TEXTS, TEXT_MEASURES, TextScore
from mm_assets_tests.filters.filter_sets import sample
from mm_assets_tests.formats.datasets import item, table_of

BY_NAME = {measure.name: measure for measure in SAMPLE_MEASURES}


def taken(name: str, *found: str) -> Any:
    return BY_NAME[name].measure(SampleContent(list(found), 0))


def of(name: str, text: str) -> Any:
    (value,) = taken(f"text_{name}", text)
    return value


@pytest.mark.parametrize(
    ("text", "words", "characters", "word_length", "lettered", "special", "punctuation"),
    [
        ("the cat sat.", 3, 12, 10 / 3, 1.0, 3 / 12, 1 / 4),
        ("2 x 3 = 6", 5, 9, 1.0, 1 / 5, 8 / 9, 0.0),
        ("", 0, 0, None, None, None, None),
        (" \n", 0, 2, None, None, 1.0, None),
        ("没有空格", 1, 4, 4.0, 1.0, 0.0, 0.0),
        ("你好，世界。", 1, 6, 6.0, 1.0, 2 / 6, 2 / 3),
        ("שלום, עולם!", 2, 11, 5.0, 1.0, 3 / 11, 2 / 4),
        ("😀😀 ok", 2, 5, 2.0, 1 / 2, 3 / 5, 0.0),
        ("e\u0301te\u0301", 1, 5, 5.0, 1.0, 0.0, 0.0),  # combining marks belong to letters
        ("“Don’t,” she said…", 3, 18, 16 / 3, 1.0, 7 / 18, 5 / 8),
        ("a\x00b", 1, 3, 3.0, 1.0, 1 / 3, 0.0),
        ("\ud800x", 1, 2, 2.0, 1.0, 1 / 2, 0.0),  # of a caller: no stored text is like that
    ],
)
def test_exact_values(
    text: str, words: int, characters: int, word_length: Any, lettered: Any, special: Any, punctuation: Any
) -> None:
    assert (of("words", text), of("characters", text), of("word_length", text)) == (
        words,
        characters,
        word_length,
    )
    shares = of("lettered_words", text), of("special_characters", text), of("punctuation", text)
    assert shares == (lettered, special, punctuation)


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("The cat sat on the mat.", 3 / 6),
        ("THE, (the) «the»! 'the' 12 –", 1.0),  # bare, in lower case; what has no letter does not count
        ("rivers mountains", 0.0),
        ("don't", 1.0),
        ("", None),
        ("12 – 34", None),
    ],
)
def test_share_of_stopwords(text: str, share: float | None) -> None:
    assert of("stopwords", text) == share


@pytest.mark.parametrize(
    ("text", "characters", "words"),
    [
        ("", 0.0, 0.0),
        ("abcdefghij", 0.0, 0.0),
        ("x" * 11, 1.0, 0.0),  # two n-grams, which are one
        ("a b c d e a b c d e", 0.0, 2 / 6),
        ("abcdefghijabcdefghij", 2 / 11, 0.0),
        ("A, b. c d (e) a b c d e!", 0.0, 2 / 6),  # words are bare, in lower case
        ("没有空格的中文句子很长没有空格的中文句子很长", 4 / 13, 0.0),
    ],
)
def test_repetition(text: str, characters: float, words: float) -> None:
    assert (of("character_repetition", text), of("word_repetition", text)) == (characters, words)
    if text:
        assert taken("character_repetition", text) == characters
        assert taken("word_repetition", text) == words


def repeated(text: str) -> float:
    counts = Counter(text[place : place + 10] for place in range(len(text) - 9))
    frequent = sorted((count for count in counts.values() if count > 1), reverse=True)
    total = sum(counts.values())
    return sum(frequent[: int(math.sqrt(len(counts)))]) / total if total else 0.0


@given(st.lists(st.text("ab \u00e9漢", max_size=60) | st.text("ab", max_size=300), max_size=5))
def test_repeated_characters_as_defined(found: list[str]) -> None:
    shares = [repeated(text) for text in found]
    assert texts.repeated_characters(found) == shares
    with mock.patch.object(texts, "_hashes", lambda codes: np.zeros(len(codes) - 9, np.uint64)):
        assert texts.repeated_characters(found) == shares, "n-grams of one number are told apart"


def test_many_texts_are_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "LOOKED_AT", 50)
    found = ["abc" * length for length in (0, 9, 30, 5, 12, 1)]
    assert taken("text_character_repetition", *found) == [repeated(text[:50]) for text in found]


def test_repetition_of_a_sample_runs_across_its_texts() -> None:
    assert taken("word_repetition", "a b c", "d e", "a b c d", "e") == 2 / 6
    assert taken("character_repetition", "abcdefghi", "abcdefghi") == 0.0
    assert (taken("word_repetition"), taken("character_repetition")) == (None, None)


def test_only_the_beginning_of_a_text_is_looked_at() -> None:
    half = "abcd " * (texts.LOOKED_AT // 5)
    long = half + "1" * 3_000_000
    assert (of("words", long), of("characters", long)) == (texts.LOOKED_AT // 5 + 1, 3_000_000 + len(half))
    assert (of("lettered_words", long), of("special_characters", long)) == (1.0, 1 / 5)
    assert of("word_repetition", long) == 1.0
    assert of("character_repetition", long) == pytest.approx(2 / 5, abs=1e-4)


@pytest.mark.parametrize("measure", TEXT_MEASURES, ids=lambda measure: measure.name)
def test_a_value_for_each_text(measure: SampleMeasure) -> None:
    several = ["the cat", "", "没有空格 12"]
    values = measure.measure(SampleContent(several, 0))
    assert len(values) == 3
    assert pa.array([values], measure.type).to_pylist() == [values]
    if measure.name != "text_position":
        assert values == [measure.measure(SampleContent([text], 0))[0] for text in several]


def stored(*found: str, names: tuple[str, ...] = tuple(OF_TEXTS)) -> SampleScores:
    table = table_of(sample("s", *found))
    wanted = [BY_NAME[name] for name in sorted({need for name in names for need in texts.needed(name)})]
    return SampleScores(score_samples(table, wanted))


TEXTS = st.lists(
    st.lists(
        st.sampled_from(["the", "cat", "Sat.", "12", "–", "«Oh»,", "漢字", "a-b", "?!"]), max_size=9
    ).map(" ".join),
    max_size=4,
)


@given(TEXTS)
def test_shares_of_a_sample_are_those_of_all_its_texts_as_one(found: list[str]) -> None:
    score = stored(*found).of("s")
    together = " ".join(text for text in found if text)
    for name in OF_TEXTS:
        whole = of(name, together)
        if name == "characters":
            whole = sum(map(len, found))
        if name == "special_characters":  # the spaces between texts are in none of them
            whole = None
            if joined := "".join(found):
                whole = len(re.sub("[^\\W\\d_]", "", joined)) / len(joined)
        assert score.get(name) == (None if whole is None else pytest.approx(whole, abs=1e-12)), name
        assert score.value(name) == score.get(name)


def test_a_sample_without_some_of_its_texts() -> None:
    score = stored("the cat sat.", "12 34", "the the").of("s")
    left = score.left(0, [0, 2])
    assert (left.texts, left.words, left.get("characters")) == (2, 5, 19)
    assert left.get("stopwords") == 3 / 5
    assert score.left(0, [0, 1, 2]) is score
    nothing = score.left(0, [])
    assert (nothing.texts, nothing.words, nothing.get("characters")) == (0, 0, 0)
    assert (nothing.get("stopwords"), nothing.get("word_length")) == (None, None)


def test_texts_are_joined_with_rows_by_their_positions() -> None:
    rows = [
        item("s", 0, text_content=None),
        item("s", 1, "image", binary_content=b"x"),
        item("s", 2, text_content="two words"),
        item("s", 4, text_content="broken", materialize_error="gone"),
        item("s", 7, text_content="one"),
    ]
    wanted = selected_measures(["text_characters"]).samples
    assert [measure.name for measure in wanted] == ["text_position", "text_words", "text_characters"]
    (row,) = score_samples(table_of(rows), wanted).to_pylist()
    assert (row["text_position"], row["text_words"], row["text_characters"]) == ([2, 7], [2, 1], [9, 3])


def test_scores_of_a_text_by_their_short_names() -> None:
    score = stored("the cat", "").of("s").text(1)
    assert isinstance(score, TextScore)
    assert (score.get("words"), score.get("language")) == (0, None)
    assert math.isnan(score.get("stopwords"))
    with pytest.raises(ValueError, match="^there is no score 'language', only text_characters"):
        score.value("language")


def test_the_language_of_each_text() -> None:
    pytest.importorskip("py3langid")
    found = [
        "The quick brown fox jumps over the lazy dog.",
        "Der Hund schläft im Garten hinter dem Haus.",
        "?",
    ]
    assert taken("text_language", *found) == ["en", "de", None]
    probabilities = taken("text_language_probability", *found)
    assert [value is None for value in probabilities] == [False, False, True]
    assert taken("text_language", found[1]) == [taken("language", found[1])]


def test_lists_of_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MeasureFileError, match="^score 'text_flagged_words': set MM_FLAGGED_WORDS to a file"):
        selected_measures(["text_flagged_words"])
    words = tmp_path / "words.txt"
    words.write_text("\ufeffbad\n  WORSE  \n\nschlecht\n", encoding="utf-8")
    monkeypatch.setenv("MM_FLAGGED_WORDS", str(words))
    (flagged,) = (m for m in selected_measures(["text_flagged_words"]).samples if "flagged" in m.name)
    assert flagged.measure(SampleContent(["Bad, worse: (schlecht) good", "12"], 0)) == [3 / 4, None]
    identity = column_of(flagged).metadata
    moved = tmp_path / "moved.txt"
    words.rename(moved)
    monkeypatch.setenv("MM_FLAGGED_WORDS", str(moved))
    (again,) = (m for m in selected_measures(["text_flagged_words"]).samples if "flagged" in m.name)
    assert column_of(again).metadata == identity, "a moved list measures nothing again"
    moved.write_text("other")
    (other,) = (m for m in selected_measures(["text_flagged_words"]).samples if "flagged" in m.name)
    assert column_of(other).metadata != identity
    texts._listed.cache_clear()
    with pytest.raises(MeasureFileError, match="another content here than where the run was planned$"):
        again.measure(SampleContent(["bad"], 0))


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "MM_STOPWORDS: {}: no such file or folder"),
        (b"\xff\xfe", "MM_STOPWORDS: {}: it is not UTF-8"),
        (b"x" * ((16 << 20) + 1), "MM_STOPWORDS: {}: it has more than 16 MiB"),
    ],
    ids=["missing", "no text", "large"],
)
def test_lists_that_cannot_be_used(
    content: bytes | None, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = tmp_path / "words.txt"
    if content is not None:
        words.write_bytes(content)
    monkeypatch.setenv("MM_STOPWORDS", str(words))
    with pytest.raises(MeasureFileError, match=f"^{line.format(re.escape(str(words)))}$"):
        selected_measures(["text_stopwords"])


def test_shares_that_lie_on_a_bound_are_stored_as_they_are() -> None:
    score = stored("abcdefg   ", names=("special_characters",)).of("s")
    assert score.text(0).get("special_characters") == 0.3
    assert score.get("special_characters") == 0.3
    assert isinstance(score.values["text_special_characters"], np.ndarray)
