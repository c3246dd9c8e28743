"""What each registered sample measure says of itself."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from mm_assets.filters.measure import SampleContent, SampleMeasure
from mm_assets.filters.measures import SAMPLE_MEASURES
from mm_assets.filters.scores import SampleScores
from mm_assets.filters.texts import TextMeasure

ODD = ["", " ", "\u00a0\u2003", "😀😀", "没有空格", "שלום עולם", "\u0301", "a\x00b", "x" * 100_000]


def test_the_columns() -> None:
    def of_texts(kind: pa.DataType) -> pa.ListType:
        return pa.list_(pa.field("element", kind))

    shares = of_texts(pa.float64())
    assert [(field.name, field.type) for field in SampleScores.schema(SAMPLE_MEASURES)][5:] == [
        ("character_repetition", pa.float64()),
        ("language", pa.string()),
        ("language_probability", pa.float32()),
        ("minhash", pa.binary(224)),
        ("repeated_lines", pa.float32()),
        ("repetition", pa.float32()),
        ("text_character_repetition", shares),
        ("text_characters", of_texts(pa.int32())),
        ("text_common_words", shares),
        ("text_flagged_words", shares),
        ("text_language", of_texts(pa.string())),
        ("text_language_probability", shares),
        ("text_lettered_words", shares),
        ("text_position", of_texts(pa.int32())),
        ("text_punctuation", shares),
        ("text_special_characters", shares),
        ("text_stopwords", shares),
        ("text_word_length", shares),
        ("text_word_repetition", shares),
        ("text_words", of_texts(pa.int32())),
        ("word_repetition", pa.float64()),
    ]


@pytest.mark.parametrize("measure", SAMPLE_MEASURES, ids=lambda measure: measure.name)
def test_each_is_named_and_takes_any_text(measure: SampleMeasure) -> None:
    assert re.fullmatch("[a-z][a-z0-9_]*", measure.name)
    assert (measure.version, bool(measure.meaning)) == ("1", True)
    values = [measure.measure(SampleContent(texts, 0)) for texts in ([], *([text] for text in ODD), ODD)]
    nothing = [] if isinstance(measure, TextMeasure) else None
    assert pa.array(values, measure.type).to_pylist()[0] == nothing
    if pa.types.is_floating(measure.type):
        assert all(value is None or 0 <= value <= 1 for value in values)
