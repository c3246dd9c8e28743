"""One type for a column that differs between shards."""

from __future__ import annotations

import pyarrow as pa
import pytest

from mm_assets.model.json_codec import is_json, json_field
from mm_assets.model.schema import SchemaMismatch, align_table, unify_fields, unify_schemas

JSON = "json"


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (pa.int64(), pa.int64(), pa.int64()),
        (pa.null(), pa.list_(pa.int8()), pa.list_(pa.int8())),
        (pa.null(), pa.null(), pa.null()),
        (pa.int8(), pa.int32(), pa.int32()),
        (pa.uint8(), pa.uint64(), pa.uint64()),
        (pa.uint8(), pa.int8(), JSON),
        (pa.int64(), pa.float32(), pa.float64()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.binary(), pa.large_binary(), pa.large_binary()),
        (pa.string(), pa.int64(), JSON),
        (pa.bool_(), pa.int64(), JSON),
        (pa.timestamp("s"), pa.timestamp("ms"), JSON),
        (pa.struct([("a", pa.int8())]), pa.struct([("b", pa.int8())]), JSON),
        (pa.list_(pa.int8()), pa.list_(pa.int16()), JSON),
    ],
    ids=str,
)
def test_pairs(one: pa.DataType, other: pa.DataType, expected: pa.DataType | str) -> None:
    for first, second in ((one, other), (other, one)):
        found = unify_fields(pa.field("f", first), pa.field("f", second))
        assert is_json(found) if expected == JSON else found.type == expected and not is_json(found)


def test_a_column_that_is_null_somewhere_may_be_null() -> None:
    nulls, strict = (
        pa.field("f", pa.null()),
        pa.field("f", pa.int64(), nullable=False, metadata={"unit": "m"}),
    )
    for first, second in ((nulls, strict), (strict, nulls)):
        assert unify_fields(first, second).equals(strict.with_nullable(True), check_metadata=True)


def test_json_text_meets_text_and_null() -> None:
    assert is_json(unify_fields(json_field("f"), pa.field("f", pa.string())))
    assert is_json(unify_fields(pa.field("f", pa.string()), json_field("f")))
    assert is_json(unify_fields(pa.field("f", pa.null()), json_field("f")))
    assert is_json(unify_fields(json_field("f"), json_field("f")))


def test_schemas_keep_the_order_in_which_columns_are_met() -> None:
    first = pa.schema([("b", pa.int64()), ("a", pa.null())])
    second = pa.schema([("c", pa.int8()), ("a", pa.string()), ("b", pa.float64())])
    merged = unify_schemas([first, second])
    assert merged.names == ["b", "a", "c"]
    assert merged.types == [pa.float64(), pa.string(), pa.int8()]


def test_a_column_that_one_schema_lacks_may_be_null() -> None:
    first = pa.schema(
        [pa.field("both", pa.int64(), nullable=False), pa.field("one", pa.int64(), nullable=False)]
    )
    merged = unify_schemas([first, pa.schema([pa.field("both", pa.int64(), nullable=False)])])
    assert [field.nullable for field in merged] == [False, True]


def test_an_integer_that_no_float_holds_is_reported_not_rounded() -> None:
    target = unify_schemas([pa.schema([("n", pa.int64())]), pa.schema([("n", pa.float64())])])
    with pytest.raises(SchemaMismatch, match="'n'"):
        align_table(pa.table({"n": [2**53 + 1]}), target)
