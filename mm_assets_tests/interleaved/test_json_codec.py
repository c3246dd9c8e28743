"""Arrow columns of any type go through JSON and come back equal."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given

from mm_assets.model.json_codec import JSON_ENCODING, NotEncodable, decode, dumps, encode, json_field
from mm_assets_tests.interleaved.arrow_values import TIMES, columns, json_columns


def through_json(column: pa.Array | pa.ChunkedArray, field: pa.Field) -> pa.Array:
    values = encode(column, field)
    carried = json.loads(dumps(values).encode("utf-8", "surrogatepass").decode("utf-8", "surrogatepass"))
    return decode(carried, field)


def assert_same(column: Any, field: pa.Field) -> None:
    back = through_json(column, field)
    assert back.type == column.type
    back.validate(full=True)
    # repr of floats tells -0.0 from 0.0 and finds NaN equal to NaN
    if not pa.types.is_temporal(column.type):
        assert repr(back.to_pylist()) == repr(column.to_pylist())
    else:
        assert back.equals(column)


@given(columns())
def test_any_column_comes_back_equal(column: pa.Array) -> None:
    field = pa.field("c", column.type)
    back = through_json(column, field)
    assert back.type == column.type
    back.validate(full=True)
    plain = pa.array(column.to_pylist() if not _has_time(column.type) else [], column.type)
    if _has_time(
        column.type
    ):  # values beyond Python's own dates: compare in Arrow (NaN does not occur beside them)
        assert dumps(encode(back, field)) == dumps(encode(column, field))
    else:
        assert repr(back.to_pylist()) == repr(plain.to_pylist())


def _has_time(type_: pa.DataType) -> bool:
    return pa.types.is_temporal(type_) or any(_has_time(type_.field(i).type) for i in range(type_.num_fields))


@pytest.mark.parametrize("type_", TIMES, ids=str)
def test_extreme_times(type_: pa.DataType) -> None:
    if pa.types.is_time(type_):
        column = pa.array([0, None, 86_399], type_)
    elif pa.types.is_date64(type_):
        column = pa.array([0, None, 86_400_000 * 10**7, -86_400_000 * 10**7], type_)
    else:
        bits = type_.bit_width - 1
        column = pa.array(
            [0, 1, None, -1, 2**bits - 1, -(2**bits), 1_714_521_600], pa.int32() if bits == 31 else pa.int64()
        ).view(type_)
    assert_same(column, pa.field("t", type_))
    assert_same(column.slice(2, 2), pa.field("t", type_))


@given(json_columns())
def test_json_text_comes_back_to_the_letter(made: tuple[pa.Field, pa.Array]) -> None:
    field, column = made
    assert through_json(column, field).to_pylist() == column.to_pylist()


def test_json_cells_are_the_values_they_hold() -> None:
    column = pa.array(['{"a":[1,null]}', None, "7", '"x"'])
    assert encode(column, json_field("j")) == [{"a": [1, None]}, None, 7, "x"]


@pytest.mark.parametrize(
    "text",
    [
        "null",
        "1e5",
        '{"a":1,"a":2}',
        '{"__arrow__":1}',
        "[" * 100_000 + "]" * 100_000,
        "nope",
        "1" * 5000,
        '"\\ud800"',
        " 1",
    ],
)
def test_json_text_in_another_spelling_is_kept(text: str) -> None:
    assert through_json(pa.array([text]), json_field("j")).to_pylist() == [text]


def test_empty_columns_of_every_nested_type() -> None:
    for type_ in (
        pa.map_(pa.string(), pa.int8()),
        pa.list_(pa.int8()),
        pa.list_(pa.int8(), 2),
        pa.struct([("a", pa.int8())]),
    ):
        assert through_json(pa.array([], type_), pa.field("c", type_)).equals(pa.array([], type_))
        assert through_json(pa.nulls(3, type_), pa.field("c", type_)).equals(pa.nulls(3, type_))


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", None, "b", "a"]).dictionary_encode(),
        pa.array([1, None, 2, 1]).dictionary_encode(),
        pa.array([[1], None]).cast(pa.list_(pa.int64())),
        pa.array([1.5, None, float("inf")], pa.float16()),
        pa.array([{"m": [("k", 1)]}], pa.struct([("m", pa.map_(pa.string(), pa.int8()))])),
        pa.array(["a", None, "x" * 40], pa.string_view()),
        pa.array([b"a", None, b"\xff" * 40], pa.binary_view()),
        pa.array(['{"b":1}', None], pa.json_()),
        pa.array([b"\0" * 16, None], pa.uuid()),
    ],
    ids=lambda c: str(c.type),
)
def test_less_usual_types(column: pa.Array) -> None:
    back = through_json(column, pa.field("c", column.type))
    assert back.type == column.type
    assert back.to_pylist() == column.to_pylist()


def test_dictionary_inside_a_list() -> None:
    type_ = pa.list_(pa.dictionary(pa.int32(), pa.int64()))
    column = pa.ListArray.from_arrays([0, 2, 3], pa.array([5, 6, 5]).dictionary_encode())
    back = through_json(column.cast(type_), pa.field("c", type_))
    assert back.type == type_
    assert back.to_pylist() == [[5, 6], [5]]


def test_json_marks_inside_a_struct_are_followed() -> None:
    child = pa.field("j", pa.string(), metadata=JSON_ENCODING)
    column = pa.StructArray.from_arrays([pa.array(['{"a":1}', "1e5"])], fields=[child])
    assert encode(column, pa.field("s", column.type))[0] == {"j": {"a": 1}}
    assert through_json(column, pa.field("s", column.type)).equals(column)


def test_chunked_columns() -> None:
    column = pa.chunked_array([pa.array([[1], None]), pa.array([], pa.list_(pa.int64())), pa.array([[2, 3]])])
    assert encode(column, pa.field("c", column.type)) == [[1], None, [2, 3]]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([(1, 2, 3)], pa.month_day_nano_interval()),
        pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]),
        pa.array([[1]], pa.list_view(pa.int64())),
        pa.RunEndEncodedArray.from_arrays([2], [1]),
        pa.array([[]], pa.list_(pa.int8(), 0)),
    ],
    ids=lambda c: str(c.type)[:20],
)
def test_types_without_exact_form_are_refused_by_name(column: pa.Array) -> None:
    with pytest.raises(NotEncodable, match="the_column"):
        encode(column, pa.field("the_column", column.type))


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (pa.int64(), 5.5),
        (pa.int64(), 5.0),
        (pa.float64(), True),
        (pa.decimal128(5, 2), "1e-999999999"),
        (pa.decimal128(5, 2), "0e999"),
        (pa.decimal128(5, 2), "NaN"),
        (pa.list_(pa.int8(), 0), []),
    ],
    ids=str,
)
def test_values_that_arrow_would_change_or_die_of(type_: pa.DataType, value: Any) -> None:
    with pytest.raises(ValueError, match="the_column|'.*' is no number of a decimal column"):
        decode([None, value], pa.field("the_column", type_))
