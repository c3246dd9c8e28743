"""Scores in columns are what each score says alone, for odd values too."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_assets.filters import Bounds, TextFilter
from mm_assets.filters.registry import FILTERS
from mm_assets.filters.score_columns import (
    RemainingSamples,
    SampleScoreColumns,
    ScoreColumns,
    TextScoreColumns,
)
from mm_assets.filters.scores import SampleScore, SampleScores
from mm_assets.filters.texts import OF_TEXTS, TEXT_MEASURES, TextScore, text_values

WHOLE = ("images", "texts", "words", "images_per_word", "text_digest", "language", "repetition", "none")
NAMES = (*WHOLE, *OF_TEXTS)
NUMBERS = st.one_of(st.none(), st.sampled_from([0.0, -0.0, 0.25, 0.3333, 1.0, math.nan, math.inf, -1.0]))
SHARES = st.one_of(st.none(), st.sampled_from([0.0, 0.25, 0.3333, 0.99, math.nan]))


@st.composite
def samples(draw: st.DrawFn) -> list[SampleScore]:
    """Scores of some samples with none to three texts each, as they are read from a file."""
    counts = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    columns: dict[str, Any] = {}
    for measure in TEXT_MEASURES:
        kind = measure.type.value_type
        whole = st.integers(0, 2000)
        value = (
            whole if pa.types.is_integer(kind) else SHARES if pa.types.is_floating(kind) else st.just("en")
        )
        lists = [draw(st.lists(value, min_size=count, max_size=count)) for count in counts]
        columns[measure.name] = text_values(pa.chunked_array([pa.array(lists, measure.type)]))
    return [
        SampleScore(
            images=draw(st.integers(0, 3)),
            texts=count,
            words=draw(st.integers(0, 50)),
            text_digest=draw(st.sampled_from([None, "d"])),
            values={
                "language": draw(st.sampled_from([None, "en"])),
                "repetition": draw(NUMBERS),
                **{name: values[number] for name, values in columns.items()},
            },
        )
        for number, count in enumerate(counts)
    ]


def same(one: Any, other: Any) -> bool:
    return (one is None) == (other is None) and (one == other or (one != one and other != other))


def alone(scores: Any, name: str) -> list[Any] | None:
    """What each says; None where one cannot be computed."""
    try:
        return [score.get(name) for score in scores]
    except (ValueError, ArithmeticError):
        return None


@given(samples(), st.data())
def test_columns_are_what_each_score_says(scores: list[SampleScore], data: st.DataObject) -> None:
    texts = [score.text(at) for score in scores for at in range(score.texts)]
    whole = SampleScoreColumns(scores)
    kept = data.draw(st.lists(st.sampled_from(range(len(scores))), unique=True).map(sorted))
    images = [data.draw(st.integers(0, 3)) for _ in kept]
    places, owners = [], []
    ids = [number for number, score in enumerate(scores) for _ in range(score.texts)]
    for place, number in enumerate(ids):
        if number in kept and data.draw(st.booleans()):
            places.append(place)
            owners.append(kept.index(number))
    rows, counts = np.array(kept, np.int64), np.array(images, np.int64)
    of_texts = np.array(owners, np.int64), np.array(places, np.int64)
    some = RemainingSamples(whole, rows, counts, TextScoreColumns(texts), *of_texts)
    every = RemainingSamples(whole, rows, counts, None, rows[:0], rows[:0])
    for judged in (whole, some, every):
        for name in NAMES:
            expected = alone(list(judged), name)
            if expected is None:
                with pytest.raises((ValueError, ArithmeticError)):
                    judged.column(name)
                continue
            assert all(map(same, judged.column(name), expected)), name
            assert len(judged.column(name)) == len(expected)
            numbers = judged.numbers(name)
            if numbers is not None:
                floats = [math.nan if value is None else float(value) for value in expected]
                assert all(map(same, numbers.tolist(), floats)), name


@given(samples())
def test_texts_in_columns(scores: list[SampleScore]) -> None:
    texts = [score.text(at) for score in scores for at in range(score.texts)]
    for some in (texts, texts[1:], texts[::2]):
        judged = TextScoreColumns(some)
        for measure in TEXT_MEASURES:
            for name in (measure.name, measure.name.removeprefix("text_")):
                expected = [score.get(name) for score in some]
                assert all(map(same, judged.column(name), expected))
                numbers = judged.numbers(name)
                if numbers is not None:
                    assert all(map(same, numbers.tolist(), [float(value) for value in expected]))


@given(st.lists(st.one_of(NUMBERS, st.integers(-3, 3), st.just(2**53 + 1)), max_size=8), st.data())
def test_bounds_judge_columns_as_single_scores(values: list[Any], data: st.DataObject) -> None:
    bounds = [kind for kind in FILTERS if issubclass(kind, Bounds) and issubclass(kind, TextFilter)]
    kind = data.draw(st.sampled_from(bounds))
    limits = {name: data.draw(st.sampled_from([0, 1, 2])) for name in kind.settings()}
    if limits.get("least", 0) > limits.get("most", 2):
        limits["least"] = 0
    judge = kind(**limits)
    column = np.array(values, object)
    scores = [TextScore({f"text_{kind.of}": column}, at) for at in range(len(values))]
    try:
        expected = [judge.verdict(score) for score in scores]
    except ValueError:  # below nothing, where there is no such bound
        with pytest.raises(ValueError, match="least"):
            judge.verdicts(ScoreColumns(scores))
        return
    assert list(judge.verdicts(ScoreColumns(scores))) == expected
    assert all(map(same, judge.numbers(ScoreColumns(scores)), judge.numbers(scores)))


def test_scores_of_a_file_in_columns() -> None:
    """Rows of samples that have no texts at all."""
    table = SampleScores.schema().empty_table()
    assert SampleScoreColumns([score for _, score in SampleScores(table)]).numbers("words").tolist() == []  # type: ignore[union-attr]
