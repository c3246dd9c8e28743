"""What each registered sample measure says of itself."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from mm_assets.filters.measure import SampleContent, SampleMeasure
from mm_assets.filters.measures import SAMPLE_MEASURES
from mm_assets.filters.scores import SampleScores

ODD = ["", " ", "\u00a0\u2003", "😀😀", "没有空格", "שלום עולם", "\u0301", "a\x00b", "x" * 100_000]


def test_the_columns() -> None:
    assert [(field.name, field.type) for field in SampleScores.schema(SAMPLE_MEASURES)][5:] == [
        ("language", pa.string()),
        ("language_probability", pa.float32()),
        ("repeated_lines", pa.float32()),
        ("repetition", pa.float32()),
    ]


@pytest.mark.parametrize("measure", SAMPLE_MEASURES, ids=lambda measure: measure.name)
def test_each_is_named_and_takes_any_text(measure: SampleMeasure) -> None:
    assert re.fullmatch("[a-z][a-z0-9_]*", measure.name)
    assert (measure.version, bool(measure.meaning)) == ("1", True)
    values = [measure.measure(SampleContent(texts, 0)) for texts in ([], *([text] for text in ODD), ODD)]
    assert pa.array(values, measure.type).to_pylist()[0] is None
    if pa.types.is_floating(measure.type):
        assert all(value is None or 0 <= value <= 1 for value in values)
