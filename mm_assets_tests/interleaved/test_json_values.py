"""Which column a raw JSON field becomes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_assets.interleaved.json_values import FieldTally, build_column, is_json
from mm_assets_tests.interleaved.arrow_values import json_values


def tallied(*values: Any) -> str:
    tally = FieldTally()
    for value in values:
        tally.observe(value)
    field = tally.field("f")
    return "json" if is_json(field) else str(field.type)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((), "null"),
        ((None, None), "null"),
        ((True, None), "bool"),
        (("a", None, ""), "string"),
        ((1, None, -5), "int64"),
        ((2**63 - 1, -(2**63) + 1), "int64"),
        ((2**63,), "json"),
        ((-(2**63),), "json"),
        ((1.5, None), "double"),
        ((1, 1.5), "double"),
        ((2**53, 0.5), "double"),
        ((2**53 + 1, 0.5), "json"),
        ((float("nan"), 1), "double"),
        ((1, True), "json"),
        ((1, "1"), "json"),
        (([],), "json"),
        (({},), "json"),
        (([1], None), "json"),
        (("a", ["a"]), "json"),
    ],
    ids=str,
)
def test_rules(values: tuple[Any, ...], expected: str) -> None:
    assert tallied(*values) == expected


@given(st.lists(json_values, max_size=6))
def test_the_chosen_type_holds_every_value_exactly(values: list[Any]) -> None:
    tally = FieldTally()
    for value in values:
        tally.observe(value)
    field = tally.field("f")
    column = build_column(values, field)
    assert column.type == field.type
    if is_json(field):
        import json

        assert [None if text is None else json.loads(text) for text in column.to_pylist()] == values
    else:
        assert column.to_pylist() == values


def test_json_text_is_compact_and_unescaped() -> None:
    tally = FieldTally()
    tally.observe({"é": [1, None]})
    assert build_column([{"é": [1, None]}], tally.field("f")).to_pylist() == ['{"é":[1,null]}']
    assert pa.types.is_string(tally.field("f").type)
