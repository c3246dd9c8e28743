"""Types that a json declares: for more memory than there is, that no writer takes, and for values of another
form.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from mm_assets_tests.formats.hostile.cases_layout import misfit, own
from mm_assets_tests.formats.hostile.outcomes import JSON, Case, Lost, Rejected, Sample
from mm_assets_tests.formats.hostile.shards import document

BIG = 2**53 + 1
WIDE = pa.list_(pa.int8(), 1000)
TEXT = {b"mm_assets:encoding": b"json"}


def x(type_: pa.DataType, **options: Any) -> list[pa.Field]:
    return [pa.field("x", type_, **options)]


def struct_of(*fields: pa.Field) -> pa.DataType:
    return pa.struct(list(fields))


def declaring(key: str, type_: pa.DataType, value: Any, read_as: Any = None) -> tuple[Any, Sample]:
    """A sample with a value of a declared type, and how it is read."""
    return own(x(type_), {"x": value}, key), Sample(key, extras={"x": read_as or value}, refs={})


def stating_none(key: str, value: Any) -> tuple[Any, Sample]:
    """A raw sample, likewise."""
    return document(key, x=value), Sample(key, extras={"x": value})


def together(name: str, column: Any, *samples: tuple[Any, Sample]) -> Case:
    """Samples of one tar whose types are joined to that of ``column``."""
    return Case(name, [member for member, _ in samples], [outcome for _, outcome in samples], {"x": column})


def written(name: str, fields: list[pa.Field], value: Any) -> Case:
    """A sample of one row, in which every column has a value; its neighbours have no such columns."""
    extra = {"text": [None], "image": [None], "metadata": {"x": value}}
    entry = own(fields, texts=[None], _row_extra=extra)
    return Case(name, [entry], [Sample(texts={}, extras={"x": value}, refs={})], {"x": fields[0].type})


def too_large(name: str, type_: pa.DataType, value: Any = None, rows: int = 1) -> Case:
    texts = ["t"] * rows
    extra = {"text": [None] * rows, "image": [None] * rows, "metadata": {"x": value}}
    entry = own(x(type_), texts=texts, images=[None] * rows, _row_extra=extra)
    return Case(name, [entry], [Lost("bad_layout", "bytes with all their columns")])


UNIFIED = [
    together(
        "stated-integer-and-float-that-do-not-unify",
        JSON,
        declaring("a", pa.int64(), BIG),
        declaring("b", pa.float64(), 1.5),
    ),
    together(
        "stated-integer-and-float-that-unify",
        pa.float64(),
        declaring("a", pa.int64(), 5, 5.0),
        declaring("b", pa.float64(), 1.5),
    ),
    together(
        "stated-float-after-raw-integer", JSON, stating_none("a", BIG), declaring("b", pa.float64(), 1.5)
    ),
    together("stated-integer-after-raw-float", JSON, stating_none("a", 1.5), declaring("b", pa.int64(), BIG)),
    together(
        "stated-dictionary-and-float-that-do-not-unify",
        JSON,
        declaring("a", pa.dictionary(pa.int8(), pa.int64()), BIG),
        declaring("b", pa.float64(), 1.5),
    ),
    together(
        "stated-dictionary-and-raw-text",
        pa.string(),
        declaring("a", pa.dictionary(pa.int8(), pa.string()), "u"),
        stating_none("b", "v"),
    ),
    together(
        "stated-integers-of-all-sizes",
        pa.int64(),
        declaring("a", pa.int8(), 5),
        declaring("b", pa.int64(), BIG),
    ),
    written("no-null-where-none-may-be", x(pa.int8(), nullable=False), 5),
]

TOO_LARGE = [
    Case(
        "list-of-structs-too-wide",
        [own(x(pa.list_(pa.struct([(str(n), pa.binary(2000)) for n in range(600)]))))],
        [Lost("bad_layout", "is wider than")],
    ),
    Case(
        "struct-of-too-many-fields",
        [own(x(pa.list_(pa.struct([(str(n), pa.int8()) for n in range(10_000)]))))],
        [Lost("bad_layout", "it declares 10002 fields, at most 10000")],
    ),
    Case(
        "columns-too-wide-together",
        [own([pa.field(str(n), pa.list_(pa.int8(), 60_000)) for n in range(2)])],
        [Lost("bad_layout", "is wider than")],
    ),
    Case(
        "extension-type-too-wide",
        [own(x(pa.fixed_shape_tensor(pa.int8(), [1000, 1000])))],
        [Lost("bad_layout", "is wider than")],
    ),
    Case(
        "items-too-wide",
        [own(x(pa.list_(pa.list_(pa.list_(pa.int8(), 1000), 1000))))],
        [Lost("bad_layout", "is wider than")],
    ),
    too_large("wide-type-in-many-rows", WIDE, rows=4500),
    too_large("list-of-wide-nulls", pa.list_(WIDE), [None] * 5000),
    too_large(
        "list-of-wide-nulls-in-a-struct", struct_of(pa.field("a", pa.list_(WIDE))), {"a": [None] * 5000}
    ),
    too_large("map-to-wide-nulls", pa.map_(pa.int8(), WIDE), [[1, None]] * 5000),
    too_large("more-wide-nulls-than-the-type-has", pa.list_(WIDE, 2), [None] * 5000),
    Case(
        "fields-beyond-the-limit",
        [document(**{f"f{n}": n for n in range(10_001)})],
        [Lost("bad_layout", "10001 fields, at most 10000")],
    ),
    Case(
        "columns-beyond-the-limit",
        [own([pa.field(str(n), pa.int8()) for n in range(10_001)])],
        [Lost("bad_layout", "it declares 10001 fields, at most 10000")],
    ),
    Case(
        "fields-beyond-the-limit-on-many-rows",
        [
            document(
                texts=["t"] * 10_001,
                images=[None] * 10_001,
                _row_extra={"text": [{str(n): n} for n in range(10_001)]},
            )
        ],
        [Lost("bad_layout", "10001 fields, at most 10000")],
    ),
    Case(
        "many-fields-of-many-rows",
        [document(texts=["t"] * 5000, images=[None] * 5000, **{str(n): n for n in range(900)})],
        [Lost("bad_layout", "its 5001 rows take")],
    ),
]

OUT_OF_FORM = [
    misfit("fraction-for-an-integer", x(pa.int64()), {"x": 5.5}, "not all values are of type int64"),
    misfit("truth-value-for-a-float", x(pa.float64()), {"x": True}, "not all values are of type double"),
    misfit(
        "number-too-exact-for-its-type",
        x(pa.float32()),
        {"x": 0.1},
        "not all values are of the form of float",
    ),
    misfit(
        "text-for-a-list-of-texts",
        x(pa.list_(pa.string())),
        {"x": "abc"},
        "not all values are of the form of list",
    ),
    misfit(
        "object-for-a-list-of-texts",
        x(pa.list_(pa.string())),
        {"x": {"a": 1}},
        "not all values are of the form of list",
    ),
    misfit("list-too-long-for-its-type", x(pa.list_(pa.int8(), 2)), {"x": [1, 2, 3, 4]}, "sample 'bad': "),
    misfit(
        "field-that-a-struct-does-not-have",
        x(struct_of(pa.field("a", pa.int8()))),
        {"x": {"a": 1, "b": 2}},
        "of the form of struct",
    ),
    misfit(
        "seconds-that-are-no-milliseconds",
        x(pa.timestamp("s")),
        {"x": {"__arrow__": 2**62}},
        "sample 'bad': ",
    ),
    misfit(
        "json-text-in-disguise",
        x(pa.string(), metadata=TEXT),
        {"x": {"__arrow__": "{}"}},
        "of the form of string",
    ),
    misfit(
        "decimal-without-end",
        x(pa.decimal128(5, 2)),
        {"x": "1e-999999999"},
        "is no number of a decimal column",
    ),
    misfit("decimal-that-is-none", x(pa.decimal128(5, 2)), {"x": "NaN"}, "is no number of a decimal column"),
    misfit(
        "null-in-a-list-where-none-may-be",
        x(pa.list_(pa.field("item", pa.int8(), nullable=False))),
        {"x": [None]},
        "sample 'bad': ",
    ),
]


def refused(name: str, type_: pa.DataType, words: str = "cannot be written: ", **options: Any) -> Case:
    return Case(name, [own(x(type_, **options))], [Rejected("bad_layout", words)])


UNWRITABLE = [
    refused("struct-of-nothing", pa.struct([])),
    refused("list-of-structs-of-nothing", pa.list_(pa.struct([]))),
    refused("list-of-no-length", pa.list_(pa.int8(), 0), "has no exact JSON form"),
    refused("bytes-of-no-length", pa.binary(0)),
    refused("decimal-of-negative-scale", pa.decimal128(5, -2)),
    refused("interval", pa.month_day_nano_interval()),
    refused("dictionary-in-a-list", pa.list_(pa.dictionary(pa.int8(), pa.int64()))),
    refused(
        "struct-with-a-field-twice",
        struct_of(pa.field("a", pa.int8()), pa.field("a", pa.int8())),
        "field names are not unique",
    ),
    refused(
        "struct-whose-field-must-be-there",
        struct_of(pa.field("a", pa.int8(), nullable=False)),
        "nulls where none may be",
    ),
    refused("json-text-that-is-no-text", pa.binary(), "JSON text is no such type", metadata=TEXT),
    refused(
        "metadata-for-lance", pa.large_binary(), "is Lance's own", metadata={b"lance-encoding:blob": b"true"}
    ),
    refused(
        "metadata-for-lance-inside",
        struct_of(pa.field("a", pa.int8(), metadata={b"k": b"lance.json"})),
        "is Lance's own",
    ),
    refused("type-for-lance", pa.string(), "is Lance's own", metadata={b"mm_assets:arrow_type": b"AAAA"}),
    refused("metadata-that-is-not-utf8", pa.int8(), metadata={b"k": b"\xff"}),
]

CASES = [*UNIFIED, *TOO_LARGE, *OUT_OF_FORM, *UNWRITABLE]
