"""The digest counts every value once, whatever the order, the cuts and the format."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_assets.model.digest import ContentDigest, row_digests
from mm_assets.model.json_codec import json_field
from mm_assets_tests.formats.datasets import item, table_of
from mm_assets_tests.interleaved.arrow_values import columns


def digest(*tables: pa.Table) -> str:
    total = ContentDigest()
    for table in tables:
        total.observe(table)
    return total.hexdigest()


ROWS = [
    item("a", content_type="application/json", source_ref="{}", score=1.5, j='{"a":1}'),
    item("a", 0, text_content="t", content_type="text/plain"),
    item("a", 1, "image", binary_content=b"bytes", content_type="image/png", score=float("nan")),
    item("a", 2, "image", materialize_error="gone"),
    item("b", 0, text_content=""),
    item("b", 1, "image", binary_content=b""),
]
EXTRAS = [pa.field("score", pa.float64()), json_field("j")]
TABLE = table_of(ROWS, EXTRAS)


def test_order_cuts_chunks_and_column_order_do_not_count() -> None:
    whole = digest(TABLE)
    assert len(whole) == 32
    assert digest(TABLE.take([5, 2, 0, 1, 4, 3])) == whole
    assert digest(TABLE.slice(0, 1), TABLE.slice(1, 0), TABLE.slice(1, 4), TABLE.slice(5)) == whole
    assert digest(pa.concat_tables([TABLE.slice(3), TABLE.slice(0, 3)])) == whole
    assert digest(TABLE.select(TABLE.column_names[::-1])) == whole


def test_a_column_without_values_does_not_count() -> None:
    assert digest(TABLE.append_column("empty", pa.nulls(TABLE.num_rows, pa.int64()))) == digest(TABLE)


def test_every_single_value_counts() -> None:
    seen = {digest(TABLE)}
    changes = [
        (0, "sample_id", "z"),
        (1, "position", 9),
        (1, "modality", "image"),
        (0, "content_type", None),
        (1, "text_content", "u"),
        (1, "text_content", ""),
        (4, "text_content", None),
        (2, "binary_content", b"bytez"),
        (5, "binary_content", None),
        (3, "binary_content", b""),
        (0, "source_ref", "{ }"),
        (3, "materialize_error", "gonE"),
        (0, "score", -1.5),
        (2, "score", None),
        (1, "score", 0.0),
        (1, "score", -0.0),
        (0, "j", '{"a":2}'),
        (0, "j", '{"a": 1}'),
        (0, "j", "null"),
    ]
    for row, name, value in changes:
        rows = [dict(r) for r in ROWS]
        rows[row][name] = value
        seen.add(digest(table_of(rows, EXTRAS)))
    assert len(seen) == len(changes) + 1


def test_a_row_more_or_less_or_twice_counts() -> None:
    assert (
        len(
            {
                digest(TABLE),
                digest(TABLE.slice(1)),
                digest(TABLE, TABLE.slice(0, 1)),
                digest(TABLE, TABLE),
                digest(),
            }
        )
        == 5
    )
    assert digest() == "0" * 32


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.field("c", pa.int32()), pa.field("c", pa.int64())),
        (pa.field("c", pa.int64()), pa.field("c", pa.float64())),
        (pa.field("c", pa.int64()), pa.field("d", pa.int64())),
    ],
)
def test_names_and_types_count(one: pa.Field, other: pa.Field) -> None:
    assert digest(table_of([item("a", c=1, d=1)], [one])) != digest(table_of([item("a", c=1, d=1)], [other]))


@pytest.mark.parametrize(
    "types",
    [
        [pa.string(), pa.large_string()],
        [pa.date32(), pa.int32()],
        [pa.timestamp("s"), pa.timestamp("ms"), pa.duration("s")],
    ],
)
def test_equal_texts_and_numbers_of_other_types_differ(types: list[pa.DataType]) -> None:
    value = "x" if types[0] == pa.string() else 5
    assert len({digest(table_of([item("a", c=value)], [pa.field("c", type_)])) for type_ in types}) == len(
        types
    )


def test_text_is_not_the_json_text_that_holds_it() -> None:
    text, json_text = pa.field("c", pa.string()), json_field("c")
    assert digest(table_of([item("a", c="x")], [text])) != digest(table_of([item("a", c='"x"')], [json_text]))


def test_values_do_not_slip_from_column_to_column() -> None:
    fields = [pa.field("p", pa.string()), pa.field("q", pa.string())]
    assert digest(table_of([item("a", p="x")], fields)) != digest(table_of([item("a", q="x")], fields))


def test_what_is_hashed() -> None:
    """As documented, so that anyone can do it again."""
    row = {
        "sample_id": "ü",
        "position": 7,
        "modality": "image",
        "text_content": "é",
        "binary_content": b"\0\1",
        "score": 1.5,
        "j": "[1]",
    }
    head = (
        "14:binary_content5:bytes=2;1:j4:json=3:[1]8:modality6:string=5:image8:position5:int32=7;"
        "9:sample_id6:string=1:ü5:score6:double=1.5;12:text_content4:text=2;"
    )
    assert row_digests(table_of([row], EXTRAS)) == [
        xxhash.xxh3_128_intdigest(head.encode() + "é".encode() + b"\0\1")
    ]
    assert row_digests(TABLE.slice(0, 0)) == []
    total = ContentDigest()
    total.add(row_digests(TABLE))
    assert total.hexdigest() == digest(TABLE) == f"{sum(row_digests(TABLE)) % 2**128:032x}"


def test_content_in_large_columns_and_slices_is_the_same() -> None:
    large = TABLE.set_column(4, "text_content", TABLE.column("text_content").cast(pa.large_string()))
    large = large.set_column(5, "binary_content", large.column("binary_content").cast(pa.binary()))
    assert row_digests(large) == row_digests(TABLE)
    assert row_digests(TABLE.slice(2, 3)) == row_digests(TABLE)[2:5]


def test_content_that_comes_apart_is_hashed_as_it_comes() -> None:
    blobs = TABLE.column("binary_content").to_pylist()
    narrow = TABLE.drop_columns(["binary_content"])
    memory = bytearray(5)

    def reused() -> Iterator[memoryview | None]:
        for blob in [*blobs, b"more"]:
            memory[:] = bytes(5)  # what was given before is gone
            memory[: len(blob or b"")] = blob or b""
            yield None if blob is None else memoryview(memory)[: len(blob)]

    values = reused()
    assert row_digests(narrow, values) == row_digests(TABLE)
    assert [bytes(value) for value in values if value is not None] == [b"more"]  # of the next table
    assert digest(TABLE) == digest_apart(narrow, blobs) != digest_apart(narrow, [None] * 6)
    with pytest.raises(ValueError, match="shorter"):
        row_digests(narrow, blobs[:5])


def digest_apart(table: pa.Table, blobs: list[bytes | None]) -> str:
    total = ContentDigest()
    total.observe(table, blobs)
    return total.hexdigest()


def test_text_that_is_not_utf8_is_named() -> None:
    broken = pa.array([b"\xff"]).view(pa.string())
    with pytest.raises(ValueError, match="column 'c': text that is not UTF-8"):
        digest(table_of([item("a")]).append_column("c", broken))


@settings(max_examples=60)
@given(columns(rows=6), st.permutations(range(6)))
def test_any_column_type(column: pa.Array, order: list[int]) -> None:
    table = TABLE.append_column("any", column)
    assert digest(table.take(order)) == digest(table.slice(0, 2), table.slice(2))
