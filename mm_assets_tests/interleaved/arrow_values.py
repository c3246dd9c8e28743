"""Hypothesis strategies for Arrow columns of almost any type."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from mm_assets.model.json_codec import JSON_ENCODING

INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
TIMES = (
    pa.date32(),
    pa.date64(),
    pa.time32("s"),
    pa.time32("ms"),
    pa.time64("us"),
    pa.time64("ns"),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    *(
        pa.timestamp(unit, zone)
        for unit in ("s", "ms", "us", "ns")
        for zone in (None, "UTC", "+05:30", "Europe/Berlin")
    ),
)
BYTES = (pa.binary(), pa.large_binary(), pa.binary(3))
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
_DAY_MS = 86_400_000

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
odd_json_texts = st.sampled_from(
    [
        "null",
        " 1",
        '{"a":1,"a":2}',
        '{"__arrow__":5}',
        "1e5",
        "NaN",
        "-Infinity",
        "[1, 2]",
        '"\\u00e9"',
        '"\\ud800"',
        "not json",
        "",
        "1" * 5000,
        "-0",
        "0.1000",
        "[" * 3000 + "]" * 3000,
    ]
)


def leaf_types() -> st.SearchStrategy[pa.DataType]:
    return st.sampled_from(
        [
            pa.null(), pa.bool_(), pa.float32(), pa.float64(), pa.string(), pa.large_string(),
            pa.decimal128(12, 3), pa.decimal256(50, 10), *INTEGERS, *TIMES, *BYTES,
        ]
    )  # fmt: skip


def _nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    keys = st.sampled_from([pa.string(), pa.int64()])
    return st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        inner.map(lambda t: pa.list_(t, 2)),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda ts: pa.struct([(f"f{i}", t) for i, t in enumerate(ts)])
        ),
        st.tuples(keys, inner).map(lambda kv: pa.map_(*kv)),
    )


arrow_types = st.recursive(leaf_types(), _nested, max_leaves=4)


def values_of(type_: pa.DataType) -> st.SearchStrategy[Any]:
    """Python values that `pa.array` takes for a type, null among them."""
    return st.none() | _present(type_)


def _present(type_: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_null(type_):
        return st.none()
    if pa.types.is_boolean(type_):
        return st.booleans()
    if pa.types.is_integer(type_):
        bits, low = (
            type_.bit_width,
            0 if pa.types.is_unsigned_integer(type_) else -(2 ** (type_.bit_width - 1)),
        )
        return st.integers(low, low + 2**bits - 1)
    if pa.types.is_floating(type_):
        return st.floats(width=type_.bit_width)
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return TEXT
    if pa.types.is_fixed_size_binary(type_):
        return st.binary(min_size=type_.byte_width, max_size=type_.byte_width)
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return st.binary(max_size=6)
    if pa.types.is_decimal(type_):
        return st.integers(-(10**9), 10**9).map(lambda n: Decimal(n).scaleb(-type_.scale))
    if pa.types.is_time(type_):
        seconds = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[type_.unit]
        return st.integers(0, 86_400 * seconds - 1)
    if pa.types.is_date64(type_):
        return st.integers(-(10**6), 10**6).map(lambda days: days * _DAY_MS)
    if pa.types.is_date32(type_):
        return st.integers(-(10**6), 10**7)
    if pa.types.is_temporal(type_):
        return st.integers(
            -(2**40), 2**50 if str(type_).startswith("timestamp[s") else 2**62
        )  # Parquet keeps milliseconds
    if pa.types.is_struct(type_):
        return st.fixed_dictionaries({f.name: values_of(f.type) for f in type_})
    if pa.types.is_map(type_):
        return st.lists(st.tuples(_present(type_.key_type), values_of(type_.item_type)), max_size=2)
    size = (
        {"min_size": type_.list_size, "max_size": type_.list_size}
        if pa.types.is_fixed_size_list(type_)
        else {"max_size": 3}
    )
    return st.lists(values_of(type_.value_type), **size)


@st.composite
def columns(
    draw: Any, types: st.SearchStrategy[pa.DataType] = arrow_types, rows: int | None = None
) -> pa.Array:
    """A column with nulls, often a slice of a longer one."""
    type_ = draw(types)
    wanted = draw(st.integers(0, 6)) if rows is None else rows
    before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    total = before + wanted + after
    values = draw(st.lists(values_of(type_), min_size=total, max_size=total))
    return pa.array(values, type_).slice(before, wanted)


@st.composite
def json_columns(draw: Any, rows: int | None = None) -> tuple[pa.Field, pa.Array]:
    """A column of JSON text, some of it not in normal form."""
    cell = (
        st.none()
        | json_values.map(lambda v: json.dumps(v, ensure_ascii=False, separators=(",", ":")))
        | odd_json_texts
    )
    wanted = draw(st.integers(0, 6)) if rows is None else rows
    texts = draw(st.lists(cell, min_size=wanted, max_size=wanted))
    return pa.field("j", pa.string(), metadata=JSON_ENCODING), pa.array(texts, pa.string())
