"""What streams of all formats say of their items, and that a file is scanned once and never left open."""

from __future__ import annotations

import gc
import os
import pickle
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from mm_assets.formats.reader import InterleavedReader
from mm_assets.formats.registry import FORMATS, Conversion, reader_for, writer_for
from mm_assets.formats.webdataset.samples import TarSamples
from mm_assets.interleaved import InterleavedParquetReader, InterleavedWebdatasetReader
from mm_assets_tests.formats.datasets import write
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.raw_tars import make_tar

MEMBERS: list[tuple[str, Any]] = [
    ("a.json", {"texts": ["t", None, "u"], "images": [None, "a.png"]}),
    ("a.png", picture(0)[1]),
    ("b.json", {"images": ["gone.png"]}),
    ("c.json", {}),
]
ITEMS = 7


def shards(folder: Path, number: int) -> Path:
    for n in range(number):
        make_tar(
            folder / f"{n}.tar",
            [(f"{n}-{name}" if name.endswith("json") else name, data) for name, data in MEMBERS],
        )
    return folder


def open_one(reader: InterleavedReader) -> Any:
    return reader.open(reader.partitions()[0])


@pytest.mark.parametrize("kind", FORMATS)
def test_items_are_known_before_any_batch_and_are_the_rows(tmp_path: Path, kind: str) -> None:
    raw = InterleavedWebdatasetReader(str(shards(tmp_path / "raw", 2)))
    report = write(kind, tmp_path / kind, raw, on_materialize_error="warn")
    assert [part.items for part in report.partitions] == [ITEMS, ITEMS]
    reader = reader_for(kind, str(tmp_path / kind), max_batch_bytes=1)
    for partition in reader.partitions():
        stream = reader.open(partition)
        assert (stream.items, stream.losses) == (ITEMS, [])
        assert sum(batch.num_rows for batch in stream) == ITEMS


@pytest.mark.parametrize("kind", FORMATS)
def test_items_of_several_files_are_their_sum(tmp_path: Path, kind: str) -> None:
    write(
        kind,
        tmp_path / kind,
        InterleavedWebdatasetReader(str(shards(tmp_path / "raw", 3))),
        on_materialize_error="warn",
    )
    reader = reader_for(kind, str(tmp_path / kind), **({} if kind == "lance" else {"files_per_partition": 2}))
    assert [reader.open(part).items for part in reader.partitions()] == (
        [ITEMS] * 3 if kind == "lance" else [2 * ITEMS, ITEMS]
    )


def test_a_filtered_parquet_file_does_not_say(tmp_path: Path) -> None:
    write(
        "parquet",
        tmp_path / "p",
        InterleavedWebdatasetReader(str(shards(tmp_path / "raw", 1))),
        on_materialize_error="warn",
    )
    reader = InterleavedParquetReader(
        str(tmp_path / "p"), read_kwargs={"filters": pc.field("modality") == "image"}
    )
    stream = open_one(reader)
    assert stream.items is None
    assert sum(batch.num_rows for batch in stream) == 2


def test_a_report_balances_when_bad_samples_are_set_aside(tmp_path: Path) -> None:
    make_tar(
        tmp_path / "raw" / "x.tar",
        [*MEMBERS, ("bad.json", b"{"), ("c2.json", {"sample_id": "c", "texts": ["lost"]})],
    )
    reader = InterleavedWebdatasetReader(str(tmp_path / "raw"), quarantine_errors=True)
    (partition,) = reader.partitions()
    report = Conversion(
        reader, partition, writer_for("parquet", str(tmp_path / "out"), on_materialize_error="drop_sample")
    ).run()
    assert report.items == ITEMS + 1 + 2 == report.rows + sum(loss.is_item for loss in report.losses)
    assert sorted(loss.kind for loss in report.losses if loss.is_cause) == [
        "bad_json",
        "duplicate_id",
        "missing_member",
    ]
    assert (report.rows, len(report.quarantined)) == (5, 5)


# Scanning once


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    uris: list[str] = []
    plain = TarSamples.__init__

    def noting(self: TarSamples, uri: str, *args: Any) -> None:
        uris.append(os.path.basename(uri))
        plain(self, uri, *args)

    monkeypatch.setattr(TarSamples, "__init__", noting)
    return uris


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_what_was_opened_for_its_schema_is_read_and_then_closed(tmp_path: Path, opened: list[str]) -> None:
    before = descriptors()
    reader = InterleavedWebdatasetReader(str(shards(tmp_path, 2)), max_batch_bytes=1)
    rows = [batch.data.num_rows for batch in reader]
    assert (sum(rows), opened) == (2 * ITEMS, ["0.tar", "1.tar"])
    assert descriptors() == before
    stream = reader.open(reader.partitions()[0])
    assert descriptors() == before + 1
    for _ in range(3):
        assert sum(batch.num_rows for batch in stream) == ITEMS
        assert descriptors() == before
    assert opened == ["0.tar", "1.tar", "0.tar", "0.tar", "0.tar"]


def test_columns_alone_are_read_from_what_was_opened(tmp_path: Path, opened: list[str]) -> None:
    reader = InterleavedWebdatasetReader(str(shards(tmp_path, 1)))
    _, tables = reader.project(reader.partitions()[0], ["sample_id"])
    assert sum(table.num_rows for table in tables) == ITEMS
    assert opened == ["0.tar"]


def test_many_open_streams_hold_one_file(tmp_path: Path, opened: list[str]) -> None:
    before = descriptors()
    reader = InterleavedWebdatasetReader(str(shards(tmp_path, 30)))
    streams = [reader.open(partition) for partition in reader.partitions()]
    assert descriptors() == before + 1
    assert [sum(batch.num_rows for batch in stream) for stream in streams] == [ITEMS] * 30
    assert (len(opened), descriptors()) == (59, before)


def test_a_stream_that_is_not_read_or_not_to_its_end_leaves_nothing_open(tmp_path: Path) -> None:
    before = descriptors()
    reader = InterleavedWebdatasetReader(str(shards(tmp_path, 1)), max_batch_bytes=1)
    stream = open_one(reader)
    next(iter(stream))
    assert descriptors() == before
    del stream
    stream = open_one(reader)
    assert descriptors() == before + 1
    del stream, reader
    assert descriptors() == before


def test_files_of_one_partition_are_not_kept(tmp_path: Path, opened: list[str]) -> None:
    before = descriptors()
    stream = open_one(InterleavedWebdatasetReader(str(shards(tmp_path, 3)), files_per_partition=3))
    assert descriptors() == before
    assert sum(batch.num_rows for batch in stream) == 3 * ITEMS
    assert opened == ["0.tar", "1.tar", "2.tar"] * 2


def test_a_reader_travels_without_what_it_has_open(tmp_path: Path) -> None:
    reader = InterleavedWebdatasetReader(
        str(shards(tmp_path, 1)), quarantine_errors=True, taken_ids=["0-c"], max_member_bytes=5
    )
    stream = open_one(reader)
    twin = pickle.loads(pickle.dumps(reader))  # noqa: S301 (our own bytes)
    rows = [row for batch in twin for row in batch.data.to_pylist()]
    assert [row["sample_id"] for row in rows] == ["0-a"] * 4 + ["0-b"] * 2
    assert [row for batch in stream for row in batch.data.to_pylist()] == rows
