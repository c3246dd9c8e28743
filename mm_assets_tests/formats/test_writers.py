"""What the writers of all formats promise: policies, reports, names, publication."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets.formats import InterleavedArrowDataset
from mm_assets.formats.registry import writer_for
from mm_assets.interleaved import (
    INTERLEAVED_SCHEMA,
    InterleavedBatch,
    InterleavedParquetReader,
    InterleavedParquetWriter,
    InterleavedWebdatasetWriter,
)
from mm_assets.model.json_codec import json_field
from mm_assets.model.losses import Loss
from mm_assets.model.samples import BatchStream
from mm_assets.storage.files import sweep
from mm_assets_tests.formats.any_tables import same
from mm_assets_tests.formats.conformance.outputs import N, rows, snapshot
from mm_assets_tests.formats.datasets import batch_of, item, read, write


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (lambda batch: batch.data, "not Table: wrap a table: InterleavedBatch(table)"),
        (lambda batch: [batch, batch.data], "not Table: wrap a table: InterleavedBatch(table)"),
        (lambda batch: (table for table in [batch.data]), "not Table: wrap a table: InterleavedBatch(table)"),
        (lambda batch: batch.data.to_batches()[0], "not RecordBatch: wrap a table: InterleavedBatch(table)"),
        (lambda batch: batch.data.to_reader(), "not RecordBatch: wrap a table: InterleavedBatch(table)"),
        (lambda batch: batch.data.to_pylist(), "not dict: read files with a reader first"),
        (lambda batch: batch.data.to_pydict(), "not dict: read files with a reader first"),
        (lambda _: "raw/*.tar", "not str: read files with a reader first"),
        (lambda _: Path("raw"), "PosixPath: read files with a reader first"),
        (lambda _: None, "not NoneType: read files with a reader first"),
    ],
)
def test_what_is_no_batch_is_refused_with_what_to_pass(
    tmp_path: Path, given: Callable[[InterleavedBatch], Any], hint: str
) -> None:
    with pytest.raises(TypeError) as caught:
        writer_for("parquet", str(tmp_path / "out")).write(given(batch_of([item("a")])))
    assert str(caught.value).startswith(
        "write() takes a reader, an InterleavedBatch or an iterable of them, not "
    )
    assert str(caught.value).endswith(hint)
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize("kind", ["parquet", "webdataset"])
def test_one_file_takes_all_partitions_and_their_notes(tmp_path: Path, kind: str) -> None:
    def stream(name: str) -> BatchStream:
        batch = batch_of(rows(name, n=1), [N], source_files=(name,))
        made = BatchStream(name, batch.data.schema, lambda: [batch], (name,))
        made.notes[name] = {"seen": 1}
        made.losses.append(Loss(name, 9, "image", "filtered", "f", "r"))
        return made

    target = tmp_path / ("one" + (".parquet" if kind == "parquet" else ".tar"))

    class Reader(InterleavedParquetReader):
        def partitions(self) -> Any:
            return ["x", "y"]

        def open(self, partition: Any) -> BatchStream:
            return stream(partition)

    report = write(kind, target, Reader("unused"))
    assert report.files == (str(target),)
    assert [p.name for p in tmp_path.iterdir()] == [target.name]
    (part,) = report.partitions
    assert part.notes == {"x": {"seen": 1}, "y": {"seen": 1}}
    assert [d.sample_id for d in part.filtered] == ["x", "y"]
    assert read(kind, target).num_rows == 6


def test_a_bare_tar_is_never_empty(tmp_path: Path) -> None:
    target = tmp_path / "one.tar"
    write("webdataset", target, batch_of(rows("a")))
    assert target.exists()
    report = write("webdataset", target, batch_of([]))
    assert report.files == ()
    assert list(tmp_path.iterdir()) == []


def test_a_long_unicode_file_name(tmp_path: Path) -> None:
    target = tmp_path / ("é" * 110 + ".parquet")
    write("parquet", target, batch_of(rows("a")))
    assert [p.name for p in tmp_path.iterdir()] == [target.name]


def test_two_partitions_of_one_name_are_refused(tmp_path: Path) -> None:
    class Reader(InterleavedParquetReader):
        def partitions(self) -> Any:
            return ["x", "x"]

        def open(self, partition: Any) -> BatchStream:
            return BatchStream("same", INTERLEAVED_SCHEMA, list)

    with pytest.raises(ValueError, match="both become partition 'same'"):
        write("parquet", tmp_path, Reader("unused"))


class Trouble(Exception):
    pass


def test_a_type_parquet_has_not_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    odd = batch_of(rows("a")).data.append_column(
        "odd", pa.array([(1, 2, 3)] * 3, pa.month_day_nano_interval())
    )
    for kind in ("parquet", "webdataset"):
        with pytest.raises(ValueError, match="column 'odd'"):
            write(kind, tmp_path, InterleavedBatch(odd))
    assert snapshot(tmp_path) == {}


def test_a_position_too_long_for_a_list_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sample 'far': position 2000000 is beyond"):
        write("webdataset", tmp_path, batch_of([item("far", 2_000_000, text_content="t")]))
    write("parquet", tmp_path, batch_of([item("far", 2_000_000, text_content="t")]))
    assert read("parquet", tmp_path)["position"].to_pylist() == [2_000_000]


def test_sweep_leaves_files_of_living_processes(tmp_path: Path) -> None:
    stream = BatchStream("p", INTERLEAVED_SCHEMA, lambda: iter([batch_of(rows("a"))]))

    def look(_: Any) -> None:
        assert sweep(str(tmp_path)) == []
        assert any(name.endswith(".tmp") for name in os.listdir(tmp_path))

    InterleavedParquetWriter(tmp_path).write_partition(stream, look)
    assert [p.name for p in tmp_path.iterdir()] == ["p.parquet"]


def test_parquet_layout(tmp_path: Path) -> None:
    """Image bytes plain and without dictionary, everything else zstd; ids can be looked up; samples are not
    cut.
    """
    extras = [
        N,
        pa.field("s", pa.struct([("a", pa.string()), ("b.c", pa.list_(pa.int8()))])),
        pa.field("l", pa.large_list(pa.string())),
        pa.field("m", pa.map_(pa.string(), pa.list_(pa.int8()))),
        pa.field("f", pa.list_(pa.float32(), 2)),
        pa.field("x.y", pa.string()),
        pa.field("u", pa.uuid()),
        json_field("j"),
        pa.field("bin", pa.binary()),
        pa.field("nn", pa.list_(pa.null())),
    ]
    big = [
        row
        for i in range(12)
        for row in [
            item(
                f"s{i}",
                n=i,
                s={"a": "x", "b.c": [1]},
                l=["x"],
                m=[("k", [1])],
                f=[1, 2],
                j="{}",
                nn=[None],
                u=b"0" * 16,
            ),
            *(item(f"s{i}", k, "image", binary_content=os.urandom(1 << 20)) for k in range(3)),
        ]
    ]
    write("parquet", tmp_path, batch_of(big, extras, partition="dir/p"))
    metadata = pq.ParquetFile(tmp_path / "dir%2Fp.parquet").metadata
    assert metadata.metadata[b"mm_assets:schema_version"] == b"1"
    assert metadata.metadata[b"mm_assets:shard"] == b"dir/p"
    assert metadata.num_row_groups > 1
    leaves = set()
    for group in range(metadata.num_row_groups):
        facts = metadata.row_group(group)
        assert facts.num_rows % 4 == 0
        assert facts.total_byte_size < 17 << 20
        for index in range(facts.num_columns):
            column = facts.column(index)
            path = column.path_in_schema
            leaves.add(path)
            assert column.compression == ("UNCOMPRESSED" if path == "binary_content" else "ZSTD"), path
            if path == "binary_content":
                assert not column.has_dictionary_page
                assert not any("DICTIONARY" in encoding for encoding in column.encodings)
                assert column.statistics is None
            if path in ("sample_id", "position"):
                assert column.statistics.has_min_max
    assert {"s.a", "s.b.c.list.element", "x.y", "bin"} <= leaves
    first = pq.ParquetFile(tmp_path / "dir%2Fp.parquet").metadata.row_group(0).column(0)
    assert first.statistics.min == "s0"


def test_bytes_of_no_known_format_travel_in_the_json(tmp_path: Path) -> None:
    source = batch_of(
        [
            item("a", 0, "image", binary_content=b"no image", content_type="image/x"),
            item("a", 1, "image", binary_content=b"?"),
        ]
    )
    InterleavedWebdatasetWriter(tmp_path).write(source)
    same(read("webdataset", tmp_path), source.data)


@pytest.mark.parametrize(
    "make", [InterleavedParquetWriter, InterleavedParquetReader, InterleavedArrowDataset]
)
def test_a_url_that_a_path_took_a_slash_from_is_no_folder(
    make: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An output would go into a folder called ``s3:``, and nobody be told."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ValueError, match="s3:/bucket/data: is s3://bucket/data meant\\? A Path takes a slash away"
    ):
        make(Path("s3://bucket/data"))
    (tmp_path / "s3:").mkdir()
    if make is InterleavedParquetWriter:
        assert InterleavedParquetWriter(Path("s3://bucket/data")).path == "s3:/bucket/data"
