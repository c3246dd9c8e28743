"""Parquet of others with a row an item: bad samples are set aside, good ones read as they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mm_assets.interleaved import InterleavedParquetReader
from mm_assets_tests.formats.any_tables import same
from mm_assets_tests.formats.datasets import batch_of, item, read, write
from mm_assets_tests.formats.document_parquet.reading import Reading, read_tolerantly
from mm_assets_tests.formats.parquet_of_others import CURATOR, PICTURES, curator, curator_rows

GOOD = curator_rows("good", "t", PICTURES[0], url="u")
URL = pa.field("url", pa.large_string())


def found(folder: Path, *samples: list[dict[str, Any]], **options: Any) -> Reading:
    rows = [row for sample in (GOOD, *samples) for row in sample]
    return read_tolerantly(curator(folder / "f.parquet", rows, [URL]), **options)


def test_what_is_sound_is_read_as_it_is(tmp_path: Path) -> None:
    tolerant = found(tmp_path, curator_rows("b", None, PICTURES[1], "x", url="v"))
    assert tolerant.losses == []
    same(tolerant.table, read("parquet", tmp_path / "f.parquet"))
    assert [(f.sample_id, f.member, f.items, f.images) for f in tolerant.survey.samples] == [
        ("good", "row 0", 3, 1),
        ("b", "row 3", 3, 1),
    ]
    assert tolerant.survey.members == 6


FAULTY: dict[str, tuple[list[dict[str, Any]], str, str]] = {
    "modality": ([item("x", 0, "video")], "bad_layout", "modality is none of metadata, text, image"),
    "no modality": ([item("x") | {"modality": None}], "bad_layout", "modality is null"),
    "metadata elsewhere": ([item("x", 3, "metadata")], "bad_layout", "metadata rows have position -1"),
    "negative": ([item("x", -2, "text")], "bad_layout", "text and image rows 0 or more"),
    "two at one place": (
        [item("x", 0), item("x", 0)],
        "bad_layout",
        "a second item of this modality at this position",
    ),
    "two of metadata": ([item("x"), item("x")], "bad_layout", "sample id 'x' occurs twice"),
    "no position": ([item("x", 0) | {"position": None}], "bad_layout", "position is null"),
    "no id": ([item("x", 0) | {"sample_id": None}], "bad_sample_id", "column 'sample_id' is null"),
}


@pytest.mark.parametrize(("rows", "kind", "words"), FAULTY.values(), ids=FAULTY)
def test_rows_that_are_no_items_cost_their_sample(
    tmp_path: Path, rows: list[dict[str, Any]], kind: str, words: str
) -> None:
    reading = found(tmp_path, rows, curator_rows("after", "y"))
    assert reading.ids == ["good", "after"]
    (loss,) = reading.losses
    assert (loss.sample_id, loss.position, loss.kind) == (rows[0]["sample_id"], -1, kind)
    assert loss.reason.startswith("f.parquet: row 3: ") and words in loss.reason
    assert json.loads(loss.source_ref or "") == {
        "path": "f.parquet",
        "member": "row 3",
        "byte_offset": None,
        "byte_size": None,
    }


def test_rows_of_a_sample_that_follow_later_are_duplicates(tmp_path: Path) -> None:
    reading = found(
        tmp_path, curator_rows("b", "x"), curator_rows("good", "again", PICTURES[1]), curator_rows("c", "z")
    )
    assert reading.ids == ["good", "b", "c"]
    assert [
        (loss.position, loss.modality, loss.is_cause, json.loads(loss.source_ref or "")["member"])
        for loss in reading.losses
    ] == [
        (-1, "metadata", True, "row 5"),
        (0, "text", False, "row 6"),
        (1, "image", False, "row 7"),
    ]
    assert {loss.kind for loss in reading.losses} == {"duplicate_id"}


def test_rows_of_a_sample_that_lie_apart_are_brought_together(tmp_path: Path) -> None:
    """Locators name rows by their place in the file, not by the order in which they come."""
    one, other = curator_rows("b", "x", PICTURES[1]), curator_rows("c", "y", PICTURES[0])
    shuffled = [[row] for pair in zip(one, other, strict=True) for row in pair]
    reading = found(tmp_path, *shuffled, [item("d", -7, "text")], curator_rows("e", "z"))
    assert reading.ids == ["good", "b", "c", "e"]
    assert reading.items("b") == [(0, "text", "x", None), (1, "image", PICTURES[1], None)]
    assert [(facts.sample_id, facts.member) for facts in reading.survey.samples][:3] == [
        ("good", "row 0"),
        ("b", "row 3"),
        ("c", "row 4"),
    ]
    (loss,) = reading.losses
    assert (loss.sample_id, json.loads(loss.source_ref or "")["member"]) == ("d", "row 9")


def test_ids_of_other_shards_and_prefixes(tmp_path: Path) -> None:
    taken = found(tmp_path, curator_rows("b", "x"), taken_ids=["good"])
    assert taken.ids == ["b"] and {loss.kind for loss in taken.losses} == {"duplicate_id"}
    prefixed = found(tmp_path, curator_rows("b", "x"), sample_id_prefix="shard")
    assert prefixed.ids == ["f/good", "f/b"]
    assert found(tmp_path, sample_id_prefix="shard", taken_ids=["f/good"]).ids == []


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    curator(tmp_path / "f.parquet", [*GOOD, *curator_rows("b", "BROKEN"), *curator_rows("c", "x")])
    table = pq.read_table(tmp_path / "f.parquet")
    texts = [
        None if value is None else value.encode().replace(b"BROKEN", b"\xff")
        for value in table["text_content"].to_pylist()
    ]
    broken = pa.array(texts, pa.large_binary()).view(pa.large_string())
    pq.write_table(table.set_column(4, CURATOR.field("text_content"), broken), tmp_path / "f.parquet")
    reading = read_tolerantly(tmp_path / "f.parquet")
    assert reading.ids == ["good", "c"]
    fault = "f.parquet: row 4: column 'text_content': not UTF-8"
    assert [(loss.position, loss.kind, loss.reason, loss.is_cause) for loss in reading.losses] == [
        (-1, "incomplete_sample", f"its sample has an error: {fault}", False),
        (0, "not_utf8", fault, True),
    ]
    assert {loss.sample_id for loss in reading.losses} == {"b"}


def test_errors_that_come_with_the_data_are_unresolved(tmp_path: Path) -> None:
    bad = [item("x"), item("x", 2, "image", materialize_error="theirs")]
    assert found(tmp_path, bad).survey.unresolved == (("x", 2, "theirs"),)


def test_bytes_of_images_are_not_looked_at(tmp_path: Path) -> None:
    """They may be damaged: samples, ids and types are told all the same."""
    file = curator(tmp_path / "f.parquet", GOOD, [URL])
    pq.write_table(pq.read_table(file), file, use_dictionary=False)
    before = read_tolerantly(file)
    data = bytearray(file.read_bytes())
    column = pq.read_metadata(file).row_group(0).column(5)
    assert column.path_in_schema == "binary_content"
    data[column.data_page_offset : column.data_page_offset + column.total_compressed_size] = (
        b"\xff" * column.total_compressed_size
    )
    file.write_bytes(data)
    reader = InterleavedParquetReader(str(file), quarantine_errors=True, relative_to=str(tmp_path))
    (partition,) = reader.partitions()
    stream = reader.open(partition)
    assert (stream.items, stream.losses, stream.schema) == (3, [], before.table.schema)


def test_integers_that_are_no_floats_are_told(tmp_path: Path) -> None:
    for number, fits in ((2**53, True), (2**53 + 1, False), (-(2**60), False)):
        rows = curator_rows("a", "t", n=number)
        reading = read_tolerantly(curator(tmp_path / "f.parquet", rows, [pa.field("n", pa.int64())]))
        assert reading.survey.declared_ints["n"].ints_fit_float is fits


def test_ours_as_a_raw_shard(tmp_path: Path) -> None:
    rows = [item("a", url="u"), item("a", 0, text_content="t")]
    write("parquet", tmp_path, batch_of(rows, [pa.field("url", pa.string())], partition="p"))
    reading = read_tolerantly(tmp_path / "p.parquet")
    same(reading.table, read("parquet", tmp_path / "p.parquet"))


ITEM = st.tuples(
    st.sampled_from(["a", "b", "c", None]),
    st.integers(-2, 2),
    st.sampled_from(["metadata", "text", "image", "other", None]),
)


@settings(suppress_health_check=list(HealthCheck))
@given(places=st.lists(ITEM, max_size=10), group=st.integers(1, 4), limit=st.sampled_from([None, 1]))
def test_any_rows_are_read_or_accounted_for(
    tmp_path_factory: pytest.TempPathFactory, places: list[Any], group: int, limit: int | None
) -> None:
    file = tmp_path_factory.mktemp("any") / "f.parquet"
    rows = [
        {"sample_id": i, "position": p, "modality": m, "text_content": str(n)}
        for n, (i, p, m) in enumerate(places)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=CURATOR), file, row_group_size=group)
    reading = read_tolerantly(file, max_batch_bytes=limit)
    numbers = [int(row["text_content"]) for row in reading.rows]
    assert len(set(numbers)) == len(numbers)
    for row in reading.rows:
        assert (row["sample_id"], row["position"], row["modality"]) == places[int(row["text_content"])]
    lost = {json.loads(loss.source_ref or "")["member"] for loss in reading.losses}
    starts = [n for n, place in enumerate(places) if n == 0 or places[n - 1][0] != place[0]]
    for start, end in zip(starts, [*starts[1:], len(places)], strict=False):
        first = next(n for n, place in enumerate(places) if place[0] == places[start][0])
        is_read = set(range(start, end)) <= set(numbers)
        # Where a sample's rows lie apart and make a sample together, it is named by its first row.
        assert is_read != bool({f"row {start}", f"row {first}"} & lost) or (is_read and first != start), (
            places
        )
        assert is_read or not set(range(start, end)) & set(numbers)
