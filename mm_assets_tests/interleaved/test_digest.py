"""The digest counts every value once, whatever the order, the cuts and the format."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm_assets.interleaved.digest import ContentDigest
from mm_assets.interleaved.json_values import json_field
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
        (0, "sample_id", "z"), (1, "position", 9), (1, "modality", "image"), (0, "content_type", None), (1, "text_content", "u"),
        (1, "text_content", ""), (4, "text_content", None), (2, "binary_content", b"bytez"), (5, "binary_content", None),
        (3, "binary_content", b""), (0, "source_ref", "{ }"), (3, "materialize_error", "gonE"), (0, "score", -1.5), (2, "score", None),
        (1, "score", 0.0), (1, "score", -0.0), (0, "j", '{"a":2}'), (0, "j", '{"a": 1}'), (0, "j", "null"),
    ]  # fmt: skip
    for row, name, value in changes:
        rows = [dict(r) for r in ROWS]
        rows[row][name] = value
        seen.add(digest(table_of(rows, EXTRAS)))
    assert len(seen) == len(changes) + 1


def test_a_row_more_or_less_or_twice_counts() -> None:
    assert len({digest(TABLE), digest(TABLE.slice(1)), digest(TABLE, TABLE.slice(0, 1)), digest(TABLE, TABLE), digest()}) == 5
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


def test_text_is_not_the_json_text_that_holds_it() -> None:
    text, json_text = pa.field("c", pa.string()), json_field("c")
    assert digest(table_of([item("a", c="x")], [text])) != digest(table_of([item("a", c='"x"')], [json_text]))


def test_values_do_not_slip_from_column_to_column() -> None:
    fields = [pa.field("p", pa.string()), pa.field("q", pa.string())]
    assert digest(table_of([item("a", p="x")], fields)) != digest(table_of([item("a", q="x")], fields))


@settings(max_examples=60, deadline=None)
@given(columns(rows=6), st.permutations(range(6)))
def test_any_column_type(column: pa.Array, order: list[int]) -> None:
    table = TABLE.append_column("any", column)
    assert digest(table.take(order)) == digest(table.slice(0, 2), table.slice(2))
