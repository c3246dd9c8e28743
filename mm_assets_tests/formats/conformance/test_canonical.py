"""Canonical readers find what was written, in its very types, and digest it as the writer did; any table, in
`test_round_trip`.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from mm_assets.accounting.canonical import Derived, derive
from mm_assets.interleaved import InterleavedBatch
from mm_assets_tests.formats.any_tables import same
from mm_assets_tests.formats.conformance.outputs import (
    EXTRAS,
    ROWS,
    TABLE,
    cut_short,
    output,
    place,
    rows_of,
)
from mm_assets_tests.formats.datasets import FORMATS, batch_of, item, table_of, write


def sorted_rows(table: pa.Table) -> pa.Table:
    return table.sort_by([("sample_id", "ascending"), ("position", "ascending"), ("modality", "descending")])


@pytest.mark.parametrize("kind", FORMATS)
def test_rows_types_and_digest_of_one_partition(kind: str, tmp_path: Path) -> None:
    other = InterleavedBatch(table_of([item("z", 0, text_content="t")]), (), "other")
    report = write(
        kind,
        tmp_path,
        [InterleavedBatch(TABLE, (), "part"), other],
        on_materialize_error="warn",
        materialize=False,
    )
    source = place(kind, tmp_path)
    same(sorted_rows(rows_of(source)), sorted_rows(TABLE))
    found = derive(kind, source.uri, "part")
    written = report.partitions[0]
    assert found == Derived(5, 2, 3, 1, written.digest, found.schema)
    assert found.schema.equals(TABLE.schema, check_metadata=True)


@pytest.mark.parametrize("kind", FORMATS)
def test_nothing_written(kind: str) -> None:
    assert derive(kind, "", "part") == derive(kind, None, "part") == Derived()
    assert Derived().digest == "0" * 32


@pytest.mark.parametrize("kind", FORMATS)
def test_what_is_not_there(kind: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        derive(kind, place(kind, tmp_path).uri, "part")


@pytest.mark.parametrize("kind", FORMATS)
def test_what_cannot_be_read_is_named(kind: str, tmp_path: Path) -> None:
    write(kind, tmp_path, batch_of(ROWS[:3], EXTRAS, partition="part"))
    path = output(kind, tmp_path)
    cut_short(path)
    with pytest.raises(ValueError, match=path.name):
        derive(kind, str(path), "part")


@pytest.mark.parametrize("kind", FORMATS)
def test_parts_have_the_same_rows_as_tables(kind: str, tmp_path: Path) -> None:
    write(
        kind,
        tmp_path,
        batch_of(ROWS, EXTRAS, partition="part"),
        on_materialize_error="warn",
        materialize=False,
    )
    whole = rows_of(place(kind, tmp_path))
    tables, blobs = [], []
    for part in place(kind, tmp_path).parts():
        assert part.schema.equals(whole.schema, check_metadata=True)
        if part.table.num_rows:
            tables.append(part.table)
            blobs += [None if blob is None else bytes(blob) for blob in part.values() or ()]
    assert pa.concat_tables(tables).equals(whole.drop_columns(["binary_content"]))
    assert blobs == whole.column("binary_content").to_pylist()
