"""Sample boundaries, item order, unique ids."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from mm_assets.model.samples import UniqueSamples, sample_offsets, sort_items
from mm_assets_tests.formats.datasets import item, table_of

SAMPLES = [
    item("b"),
    item("b", 0),
    item("b", 0, "image"),
    item("b", 2, "image"),
    item("a", 7),
    item("c"),
    item("b2", 0),
]


def places(table: pa.Table) -> list[tuple[str, int, str]]:
    return list(
        zip(*(table.column(n).to_pylist() for n in ("sample_id", "position", "modality")), strict=True)
    )


def test_offsets_over_chunks_and_types() -> None:
    table = table_of(SAMPLES)
    expected = [0, 4, 5, 6, 7]
    assert sample_offsets(table).tolist() == expected
    chunked = pa.concat_tables([table.slice(0, 2), table.slice(2, 0), table.slice(2, 3), table.slice(5)])
    assert chunked.column(0).num_chunks > 2
    assert sample_offsets(chunked).tolist() == expected
    assert sample_offsets(table.slice(2)).tolist() == [0, 2, 3, 4, 5]
    assert sample_offsets(table.slice(0, 0)).tolist() == [0]
    for type_ in (pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()):
        other = table.set_column(0, "sample_id", table.column(0).cast(type_))
        assert sample_offsets(other).tolist() == expected


def test_sorted_rows_are_the_very_table() -> None:
    table = table_of(SAMPLES)
    assert sort_items(table) is table


def test_rows_are_sorted_within_their_sample_and_samples_stay() -> None:
    table = table_of(SAMPLES)
    pick = random.Random(5)
    for _ in range(20):
        order = [
            i
            for low, high in ((0, 4), (4, 5), (5, 6), (6, 7))
            for i in pick.sample(range(low, high), high - low)
        ]
        assert sort_items(table.take(order)).equals(table)


def test_types_of_others() -> None:
    table = table_of(SAMPLES)
    table = table.set_column(1, "position", table.column(1).cast(pa.int64()))
    table = table.set_column(2, "modality", table.column(2).dictionary_encode())
    assert places(sort_items(table.take([1, 0, 3, 2, 4, 5, 6]))) == places(table)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([item("s"), item("s", 0), item("s", 0)], "sample 's', position 0, modality 'text': a second item"),
        (
            [item("s", 3, "image"), item("s"), item("s", 3, "image")],
            "sample 's', position 3, modality 'image': a second item",
        ),
        ([item("s"), item("s")], "sample id 's' occurs twice"),
        ([item("s", 0, "video")], "modality is none of metadata, text, image"),
        ([item("s", 0, "metadata")], "metadata rows have position -1"),
        ([item("s", -1, "text")], "metadata rows have position -1"),
        ([item("s", -2, "metadata")], "metadata rows have position -1"),
    ],
)
def test_what_no_layout_has_a_place_for(rows: list[dict[str, object]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        sort_items(table_of(rows))


@pytest.mark.parametrize("column", ["sample_id", "position", "modality"])
def test_nulls_are_named(column: str) -> None:
    rows = table_of([item("s"), item("s", 0)]).to_pylist()
    rows[1][column] = None
    schema = pa.schema([pa.field(f.name, f.type) for f in table_of([]).schema])
    with pytest.raises(ValueError, match=f"{column} is null"):
        sort_items(pa.Table.from_pylist(rows, schema=schema))


def test_a_position_beyond_32_bits_is_refused_not_wrapped() -> None:
    table = table_of([item("s", 5)])
    table = table.set_column(1, "position", pa.array([2**32 + 5]))
    with pytest.raises(ValueError, match="does not fit 32 bits"):
        sort_items(table)


def test_unique_samples() -> None:
    unique = UniqueSamples()
    assert unique.observe(table_of(SAMPLES)) == 4
    assert unique.observe(table_of([])) == 0
    assert unique.observe(table_of([item("new"), item("new", 0)])) == 1
    assert unique.count == 5
    with pytest.raises(ValueError, match="'a' occurs twice"):
        unique.observe(table_of([item("a")]))


def test_rows_of_a_sample_that_are_not_consecutive_are_refused() -> None:
    with pytest.raises(ValueError, match="not consecutive"):
        UniqueSamples().observe(table_of([item("a"), item("b"), item("a", 0)]))
