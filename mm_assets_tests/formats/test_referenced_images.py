"""Parquet that refers to images of another file: the same rows by all readers, never another image."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from mm_assets.accounting.canonical import CanonicalSource, derive
from mm_assets.formats.parquet import IMAGE_REF, IMAGE_REFS, items
from mm_assets.formats.parquet.reader_writer import (
    ImagesOfSource,
    InterleavedParquetReader,
    InterleavedParquetWriter,
)
from mm_assets.formats.partitions import Partition
from mm_assets.formats.registry import Conversion, reader_for
from mm_assets.interleaved import InterleavedBatch
from mm_assets.model.errors import ShardError
from mm_assets.model.samples import StepResult
from mm_assets.train import InterleavedDataset
from mm_assets.view.sample import parquet_rows
from mm_assets_tests.formats.any_tables import same
from mm_assets_tests.formats.datasets import FORMATS, batch_of, item, read, write
from mm_assets_tests.formats.odd_samples import hostile
from mm_assets_tests.formats.raw_tars import make_tar

Change = Callable[[pa.Table], pa.Table]


class Step:
    """Changes batches as a filter does, or as a step of a user."""

    def __init__(self, change: Change) -> None:
        self._change = change

    def __call__(self, batch: InterleavedBatch) -> StepResult:
        return StepResult(batch.with_data(self._change(batch.data)))


def filtered(folder: Path, *changes: Change, refers: bool = True, **options: Any) -> Path:
    """Write ``folder/filtered/part.parquet`` from ``folder/curated/part.parquet``, and return it."""
    source = folder / "curated" / "part.parquet"
    dest = folder / ("filtered" if refers else "copied") / "part.parquet"
    images = ImagesOfSource("curated/part.parquet")
    writer = InterleavedParquetWriter(str(dest), on_materialize_error="warn", materialize=False)
    steps = tuple(map(Step, changes))
    reader = InterleavedParquetReader((), **options)
    conversion = Conversion(
        reader,
        Partition("part", (str(source),)),
        writer.referring_to(images) if refers else writer,
        (images, *steps) if refers else steps,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # items without content
        conversion.run()
    return dest


def without_some_images(table: pa.Table) -> pa.Table:
    kinds, positions = (table[name].to_pylist() for name in ("modality", "position"))
    kept = [kind != "image" or at % 3 != 2 for kind, at in zip(kinds, positions, strict=True)]
    return table.filter(pa.array(kept))


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A folder with curated rows of odd samples: errors, empty samples, equal images, frames of TIFF."""
    raw = make_tar(tmp_path / "raw" / "part.tar", hostile())
    reader = reader_for("webdataset", str(raw), quarantine_errors=True)
    write("parquet", tmp_path / "curated" / "part.parquet", reader, on_materialize_error="warn")
    return tmp_path


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A folder with curated rows of 24 samples, in several row groups, with their images."""
    write("parquet", tmp_path / "curated" / "part.parquet", [plain_batch()])
    return tmp_path


def plain_batch(seed: int = 0) -> InterleavedBatch:
    made = np.random.default_rng(seed)
    rows = []
    for number in range(24):
        rows += [item(f"s{number}"), item(f"s{number}", 0, text_content="words")]
        rows += [
            item(f"s{number}", at, "image", content_type="image/png", binary_content=made.bytes(300_000))
            for at in range(4)
        ]
    return batch_of(rows)


def image_bytes(file: Path) -> int:
    column = pq.read_table(file, columns=["binary_content"]).column(0)
    return sum(len(value) for value in column.to_pylist() if value is not None)


@pytest.mark.parametrize("changes", [(), (without_some_images,)], ids=["all", "some"])
@pytest.mark.parametrize("max_batch_bytes", [None, 1 << 20])
def test_odd_samples_are_the_same(odd: Path, changes: Sequence[Change], max_batch_bytes: int | None) -> None:
    copy, reference = filtered(odd, *changes, refers=False), filtered(odd, *changes)
    assert image_bytes(copy) > 0 == image_bytes(reference)
    options = {"max_batch_bytes": max_batch_bytes}
    same(read("parquet", reference, **options), read("parquet", copy, **options))
    one, other = (CanonicalSource("parquet", str(file), "part") for file in (reference, copy))
    same(as_table_of(one), as_table_of(other))
    assert derive("parquet", str(reference), "part") == derive("parquet", str(copy), "part")


def as_table_of(source: CanonicalSource) -> pa.Table:
    return pa.concat_tables(source.tables())


@pytest.mark.parametrize("kind", sorted(FORMATS))
def test_converted_they_are_the_same(odd: Path, kind: str) -> None:
    copy, reference = filtered(odd, without_some_images, refers=False), filtered(odd, without_some_images)
    for name, file in (("a", reference), ("b", copy)):
        write(kind, odd / name, InterleavedParquetReader(str(file)), on_materialize_error="warn")
    same(read(kind, odd / "a"), read(kind, odd / "b"))
    if kind == "parquet":
        assert (odd / "a" / "part.parquet").read_bytes() == (odd / "b" / "part.parquet").read_bytes()


def test_several_row_groups(plain: Path) -> None:
    copy, reference = filtered(plain, without_some_images, refers=False), filtered(plain, without_some_images)
    assert pq.ParquetFile(plain / "curated" / "part.parquet").num_row_groups > 1
    assert pq.ParquetFile(reference).num_row_groups == pq.ParquetFile(copy).num_row_groups > 1
    assert reference.stat().st_size < copy.stat().st_size / 100
    same(read("parquet", reference), read("parquet", copy))
    assert derive("parquet", str(reference), "part") == derive("parquet", str(copy), "part")


def test_images_of_a_row_group_that_is_not_held(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items, "_FILLED_AT_ONCE", 1 << 20)
    monkeypatch.setattr(items, "_READ_AT_ONCE", 1 << 20)
    same(
        read("parquet", filtered(plain, without_some_images)),
        read("parquet", filtered(plain, without_some_images, refers=False)),
    )


def test_curated_rows_in_another_order_are_found(plain: Path) -> None:
    reference = filtered(plain)
    expected = read("parquet", reference)
    curated = plain / "curated" / "part.parquet"
    table = read("parquet", curated)
    offsets = list(range(0, table.num_rows, 6))[::-1]
    shuffled = pa.concat_tables([table.slice(start, 6) for start in offsets])
    write("parquet", curated, [InterleavedBatch(shuffled)], mode="overwrite")
    same(read("parquet", reference), expected)
    assert derive("parquet", str(reference), "part").images == 96


def test_single_samples_and_documents_of_a_loader(plain: Path) -> None:
    reference, copy = filtered(plain, without_some_images), filtered(plain, without_some_images, refers=False)
    ids = ["s3", "s23", "s17"]
    one, other = (pa.concat_tables(parquet_rows(str(file), ids)) for file in (reference, copy))
    assert one.equals(other)
    assert one["binary_content"].null_count < one.num_rows

    def documents(file: Path) -> list[Any]:
        dataset = InterleavedDataset(str(file.parent), shuffle=False, decode=None)
        return sorted((dict(document) for document in dataset), key=lambda document: document["sample_id"])

    assert documents(reference) == documents(copy)


def test_without_image_bytes_curated_is_not_opened(plain: Path) -> None:
    reference = filtered(plain)
    (plain / "curated" / "part.parquet").unlink()
    reader = InterleavedParquetReader(str(reference))
    _, tables = reader.project(Partition("part", (str(reference),)), ["sample_id", "source_ref"])
    assert sum(table.num_rows for table in tables) == 144


def test_images_that_a_step_changes_are_kept(plain: Path) -> None:
    def other_bytes(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index("binary_content")
        values = [
            b"another" if value is not None and sample_id == "s7" else value
            for value, sample_id in zip(
                table["binary_content"].to_pylist(), table["sample_id"].to_pylist(), strict=True
            )
        ]
        return table.set_column(at, table.schema.field(at), pa.array(values, pa.large_binary()))

    def renamed(table: pa.Table) -> pa.Table:
        ids = ["new" if value == "s9" else value for value in table["sample_id"].to_pylist()]
        return table.set_column(0, table.schema.field(0), pa.array(ids))

    copy, reference = (filtered(plain, other_bytes, renamed, refers=refers) for refers in (False, True))
    assert image_bytes(reference) == 4 * len(b"another") + 4 * 300_000
    same(read("parquet", reference), read("parquet", copy))
    assert derive("parquet", str(reference), "part") == derive("parquet", str(copy), "part")


def test_a_reference_names_file_bytes_and_digest(plain: Path) -> None:
    table = pq.read_table(filtered(plain))
    assert table.schema.names[-1] == IMAGE_REFS and table.schema.field(IMAGE_REFS).type == IMAGE_REF
    curated = pq.read_table(plain / "curated" / "part.parquet")
    joined = zip(table.to_pylist(), curated["binary_content"].to_pylist(), strict=True)
    for row, data in joined:
        assert row["binary_content"] is None
        expected = {
            "path": "curated/part.parquet",
            "bytes": len(data or b""),
            "digest": xxhash.xxh3_128_hexdigest(data or b""),
        }
        assert row[IMAGE_REFS] == (expected if row["modality"] == "image" else None)


def test_a_column_of_that_name_is_refused(tmp_path: Path) -> None:
    batch = batch_of([item("a", **{IMAGE_REFS: "mine"})], [pa.field(IMAGE_REFS, pa.string())])
    write("parquet", tmp_path / "curated" / "part.parquet", [batch])
    with pytest.raises(ShardError, match=r"curated/part\.parquet: column 'binary_ref': the name of"):
        filtered(tmp_path)
    same(read("parquet", filtered(tmp_path, refers=False)), batch.data)


def rewritten(folder: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    file = folder / "curated" / "part.parquet"
    write("parquet", file, [InterleavedBatch(change(read("parquet", file)))], mode="overwrite")


def without_s5(table: pa.Table) -> pa.Table:
    return table.filter(pa.array([value != "s5" for value in table["sample_id"].to_pylist()]))


def with_other_images(table: pa.Table) -> pa.Table:
    return plain_batch(seed=1).data


def nearly(table: pa.Table) -> pa.Table:
    """One image with one other byte."""
    at = table.schema.get_field_index("binary_content")
    values = table["binary_content"].to_pylist()
    row = next(
        row
        for row, key in enumerate(
            zip(table["sample_id"].to_pylist(), table["position"].to_pylist(), strict=True)
        )
        if key == ("s5", 2)
    )
    values[row] = values[row][:-1] + bytes([values[row][-1] ^ 1])
    return table.set_column(at, table.schema.field(at), pa.array(values, pa.large_binary()))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            without_s5,
            r"sample 's5', position 0: binary_content: the image in \S+/curated/part.parquet is not there",
        ),
        (with_other_images, r"sample 's0', position 0: binary_content: the image in \S+ is another image"),
        (nearly, r"sample 's5', position 2: binary_content: the image in \S+ is another image"),
    ],
)
def test_curated_made_anew_with_other_images(
    plain: Path, change: Callable[[pa.Table], pa.Table], line: str
) -> None:
    reference = filtered(plain)
    rewritten(plain, change)
    with pytest.raises(ShardError, match=r"filtered/part\.parquet: " + line):
        read("parquet", reference)
    with pytest.raises(ShardError, match=r"filtered/part\.parquet: sample 's\d+', position \d: \w+"):
        derive("parquet", str(reference), "part")
    with pytest.raises(ShardError, match=line):
        list(parquet_rows(str(reference), ["s5", "s0"]))


def test_curated_missing_damaged_or_none(plain: Path) -> None:
    reference, curated = filtered(plain), plain / "curated" / "part.parquet"
    data = curated.read_bytes()
    curated.write_bytes(data[: len(data) // 2])
    with pytest.raises(ShardError, match=r"curated/part\.parquet: not a readable Parquet file"):
        read("parquet", reference)
    shutil.copy(reference, curated)  # it refers to itself
    with pytest.raises(ShardError, match=r"filtered/part\.parquet: its images lie in \S+: no file of images"):
        read("parquet", reference)
    pq.write_table(pa.table({"x": [1]}), curated)
    with pytest.raises(ShardError, match="no file of images"):
        read("parquet", reference)
    curated.unlink()
    with pytest.raises(ShardError, match=r"its images lie in \S+/curated/part\.parquet: no such file"):
        read("parquet", reference)
    with pytest.raises((ShardError, OSError), match=r"curated/part\.parquet"):
        derive("parquet", str(reference), "part")


def tampered(file: Path, change: Callable[[list[Any]], list[Any]], kind: pa.DataType = IMAGE_REF) -> None:
    table = pq.read_table(file)
    at = table.schema.get_field_index(IMAGE_REFS)
    refs = pa.array(change(table[IMAGE_REFS].to_pylist()), kind)
    pq.write_table(table.set_column(at, pa.field(IMAGE_REFS, kind), refs), file)


def test_data_choose_neither_file_nor_memory(plain: Path, tmp_path: Path) -> None:
    reference = filtered(plain)
    expected = read("parquet", reference)
    secret = tmp_path / "secret.parquet"
    shutil.copy(plain / "curated" / "part.parquet", secret)
    tampered(reference, lambda refs: [ref and {**ref, "path": str(secret)} for ref in refs])
    same(read("parquet", reference), expected)  # by the place of the file alone
    (plain / "curated" / "part.parquet").unlink()
    with pytest.raises(ShardError, match=r"curated/part\.parquet: no such file"):
        read("parquet", reference)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            lambda refs: [ref and {**ref, "bytes": 10**15} for ref in refs],
            "those of this file were larger than that is",
        ),
        (lambda refs: [ref and {**ref, "bytes": None} for ref in refs], "another image"),
        (lambda refs: [ref and {**ref, "digest": "0" * 32} for ref in refs], "another image"),
        (lambda refs: [refs[2], None, None, *refs[3:]], "position -1: binary_content: .* another image"),
    ],
)
def test_references_that_are_not_ours(plain: Path, change: Any, line: str) -> None:
    reference = filtered(plain)
    tampered(reference, change)
    with pytest.raises(ShardError, match=line):
        read("parquet", reference)
    with pytest.raises(ShardError, match=r"filtered/part\.parquet"):
        derive("parquet", str(reference), "part")


def test_a_column_of_references_of_another_type(plain: Path) -> None:
    reference = filtered(plain)
    tampered(reference, lambda refs: [json.dumps(ref) for ref in refs], pa.string())
    with pytest.raises(ShardError, match=r"filtered/part\.parquet: damaged Parquet data"):
        read("parquet", reference)
