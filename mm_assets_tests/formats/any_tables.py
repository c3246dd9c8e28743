"""Any table, drawn by hypothesis, and what it is to be the same table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from mm_assets.formats.writer import absent_content
from mm_assets.model import json_codec
from mm_assets.model.losses import with_errors
from mm_assets.model.nested_types import plain_type
from mm_assets_tests.formats.datasets import batch_of, item
from mm_assets_tests.interleaved.arrow_values import TEXT, arrow_types, columns, json_columns

IDS = st.text(st.characters(exclude_categories=("Cs",)), max_size=12) | st.sampled_from(
    [".", "..", "a/b", "a.b", "__x", "x" * 300]
)


BLOBS = st.sampled_from(
    [b"", b"x", b"\x89PNG\r\n\x1a\n....", b"\xff\xd8\xff\xe0", b"GIF89a", b"BM", b"\0" * 70]
)


def same(found: pa.Table, expected: pa.Table) -> None:
    """Equal rows in equal types; NaN is NaN, -0.0 is not 0.0."""
    plain = pa.schema([field.with_type(plain_type(field.type)) for field in expected.schema])
    assert found.schema.equals(plain, check_metadata=True), (found.schema, plain)
    assert found.num_rows == expected.num_rows
    for name in expected.column_names:
        left, right = (
            repr(json_codec.encode(rows.column(name), rows.schema.field(name))) for rows in (found, expected)
        )
        assert left == right, name


@st.composite
def rows_of_samples(draw: Any) -> list[dict[str, Any]]:
    rows = []
    for sample_id in draw(st.lists(IDS, min_size=1, max_size=3, unique=True)):
        places = draw(st.sets(st.tuples(st.integers(0, 5), st.sampled_from(["text", "image"])), max_size=4))
        if draw(st.booleans()) or not places:
            places.add((-1, "metadata"))
        for position, modality in sorted(places, key=lambda p: (p[0], p[1] == "image")):
            rows.append(
                item(
                    sample_id,
                    position,
                    modality,
                    content_type=draw(
                        st.none() | st.sampled_from(["text/plain", "image/png", "application/json", ""])
                    ),
                    text_content=draw(st.none() | TEXT),
                    binary_content=draw(st.none() | BLOBS),
                    source_ref=draw(st.none() | st.sampled_from(["{}", '{"path":"a"}', "junk", ""])),
                    materialize_error=draw(st.sampled_from([None, None, None, "", "broken: ü"])),
                )
            )
    return rows


@st.composite
def tables(draw: Any, types: st.SearchStrategy[pa.DataType] = arrow_types) -> pa.Table:
    """Any columns; items without content say so, as writers would have them."""
    rows = draw(rows_of_samples())
    table = batch_of(rows).data
    table = with_errors(table, absent_content(table))
    for number in range(draw(st.integers(0, 3))):
        name = draw(
            st.sampled_from(
                [
                    "a",
                    "texts",
                    "images",
                    "_mm_assets",
                    "_row_extra",
                    "_source",
                    "x.y",
                    "é",
                    "sample id",
                    "json",
                ]
            )
        ) + str(number)
        if draw(st.booleans()):
            field, values = draw(json_columns(rows=len(rows)))
            field = field.with_name(name)
        else:
            values = draw(columns(types, rows=len(rows)))
            field = pa.field(name, values.type)
        table = table.append_column(field, values)
    return table
