"""Which column a raw JSON field becomes."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mm_assets.model.json_codec import FieldTally, build_column, is_json
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
        assert [None if text is None else json.loads(text) for text in column.to_pylist()] == values
    else:
        assert column.to_pylist() == values


def tally_of(*values: Any) -> FieldTally:
    tally = FieldTally()
    for value in values:
        tally.observe(value)
    return tally


@given(st.lists(json_values, max_size=5), st.lists(json_values, max_size=5))
@example([1], [2**53 + 1])
@example([2**53 + 1], [0.5])
def test_tallies_merge_as_if_one_had_seen_all(first: list[Any], second: list[Any]) -> None:
    merged, other = tally_of(*first), tally_of(*second)
    merged.merge(other)
    assert merged == tally_of(*first, *second)
    assert other == tally_of(*second)


@pytest.mark.parametrize(
    "values",
    [
        (),
        (None,),
        (True, False),
        (1, -7),
        (2**53,),
        (-(2**53) - 1,),
        (2**63,),
        (-(2**20000),),
        (1.5,),
        ("a", [], {}),
    ],
)
def test_a_tally_survives_json(values: tuple[Any, ...]) -> None:
    tally = tally_of(*values)
    found = FieldTally.from_json(json.loads(json.dumps(tally.to_json())))
    assert found == tally
    assert found.field("f").equals(tally.field("f"), check_metadata=True)
    assert (
        found.ints_fit_float == tally.ints_fit_float == all(abs(v) <= 2**53 for v in values if type(v) is int)
    )


@pytest.mark.parametrize(
    ("one", "other"), [((), (None,)), ((1,), (True,)), ((1,), (2,)), ((1,), (1.5,)), (("a",), ([],))], ids=str
)
def test_tallies_of_other_values_differ(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    assert tally_of(*one) != tally_of(*other)


@pytest.mark.parametrize(
    "values",
    [{}, {"kinds": ["int"]}, {"kinds": ["set"], "largest_int": 1}, {"kinds": ["int"], "largest_int": None}],
)
def test_what_is_no_tally_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises((LookupError, TypeError)):
        FieldTally.from_json(values)


@given(st.lists(json_values, max_size=5), st.lists(json_values, max_size=5))
@example([2**53], [2**53 + 1])
@example([2**63 - 1], [0.5])
@example([2**63], [1])
def test_a_rounded_tally_decides_the_same(first: list[Any], second: list[Any]) -> None:
    tally, other = tally_of(*first), tally_of(*second)
    rounded = tally.rounded()
    for one, same in ((tally, rounded), (rounded, rounded.rounded())):
        assert same.field("f").equals(one.field("f"), check_metadata=True)
        assert same.ints_fit_float == one.ints_fit_float
    tally.merge(other)
    rounded.merge(other.rounded())
    assert rounded.field("f").equals(tally.field("f"), check_metadata=True)
    assert rounded == tally.rounded()


@pytest.mark.parametrize("values", [(1,), (2**53,), (None, "a", -5)], ids=str)
def test_rounded_tallies_of_like_values_are_equal(values: tuple[Any, ...]) -> None:
    like = [value + 1 if type(value) is int and value < 2**53 else value for value in values]
    assert tally_of(*values).rounded() == tally_of(*like).rounded()


def test_json_text_is_compact_and_unescaped() -> None:
    tally = FieldTally()
    tally.observe({"é": [1, None]})
    assert build_column([{"é": [1, None]}], tally.field("f")).to_pylist() == ['{"é":[1,null]}']
    assert pa.types.is_string(tally.field("f").type)
