"""What readers promise: batches, lineage, columns, partitions, and damage in one line."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pyarrow as pa
import pytest

from mm_assets.formats.names import format_of
from mm_assets.formats.registry import reader_for
from mm_assets.interleaved import INTERLEAVED_SCHEMA, SchemaMismatch
from mm_assets.model.errors import ShardError
from mm_assets.model.json_codec import is_json
from mm_assets_tests.formats.any_tables import same
from mm_assets_tests.formats.conformance.outputs import EXTRAS as COLUMNS
from mm_assets_tests.formats.conformance.outputs import PNG, ROWS, TABLE, cut_short, main_file, output
from mm_assets_tests.formats.datasets import FORMATS, as_table, batch_of, item, read, write
from mm_assets_tests.formats.test_readers import EXTRAS, uneven


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("limit", [1, 3000, 20_000, 100_000, 1 << 30])
def test_batches_are_within_their_bytes(tmp_path: Path, kind: str, limit: int) -> None:
    write(kind, tmp_path, batch_of(uneven(0), EXTRAS, partition="p"))
    whole = read(kind, tmp_path)
    batches = list(reader_for(kind, str(tmp_path), max_batch_bytes=limit))
    same(as_table(batches), whole)
    for batch in batches:
        assert batch.nbytes <= limit or batch.num_samples == 1
        assert batch.partition == "p"
    ids = [sample for batch in batches for sample in batch.data["sample_id"].unique().to_pylist()]
    assert len(ids) == len(set(ids)) == 30
    assert limit > 1 or len(batches) == 30
    if limit == 100_000:  # not needlessly small either
        assert len(batches) < 4 * whole.nbytes / limit + 2


@pytest.mark.parametrize("kind", FORMATS)
def test_lineage_and_partitions(tmp_path: Path, kind: str) -> None:
    parts = [batch_of(uneven(i, 4), EXTRAS, partition=f"p{i}") for i in range(5)]
    write(kind, tmp_path, parts)
    reader = reader_for(kind, str(tmp_path))
    assert [p.name for p in reader.partitions()] == [f"p{i}" for i in range(5)]
    for part, batch in zip(parts, reader, strict=True):
        same(batch.data, part.data)
        assert batch.partition == part.partition
    if format_of(kind).is_table:
        return  # its files are the table's own
    files = [p.files[0] for p in reader.partitions()]
    grouped = reader_for(kind, str(tmp_path), files_per_partition=2)
    assert [(p.name, len(p.files)) for p in grouped.partitions()] == [("p0+1", 2), ("p2+1", 2), ("p4", 1)]
    assert [list(batch.source_files) for batch in grouped] == [files[0:2], files[2:4], files[4:]]
    split = list(reader_for(kind, str(tmp_path), files_per_partition=5, max_batch_bytes=1 << 20))
    assert [list(batch.source_files) for batch in split] == [[file] for file in files]
    if format_of(kind).marker:  # many files each
        with pytest.raises(ValueError, match=r"blocksize: a .* has many files"):
            reader_for(kind, str(tmp_path), blocksize=5)
        return
    size = max(Path(file).stat().st_size for file in files)
    assert len(reader_for(kind, str(tmp_path), blocksize=size * 3).partitions()) == 2
    assert len(reader_for(kind, str(tmp_path), blocksize="1GiB").partitions()) == 1
    with pytest.raises(ValueError, match="not both"):
        reader_for(kind, str(tmp_path), blocksize=5, files_per_partition=2).partitions()
    with pytest.raises(ValueError, match="at least 1"):
        reader_for(kind, str(tmp_path), files_per_partition=0).partitions()


@pytest.mark.parametrize("kind", FORMATS)
def test_fields(tmp_path: Path, kind: str) -> None:
    write(kind, tmp_path, batch_of(uneven(0, 3), EXTRAS))
    reader = reader_for(kind, str(tmp_path), fields=["j", "gone", "n"])
    (file,) = reader.partitions()[0].files
    with pytest.warns(
        UserWarning, match=f"^{re.escape(file)}: fields not found, filled with null: gone$"
    ) as caught:
        (batch,) = reader
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="gone") as caught:
        reader.open(reader.partitions()[0])
    assert caught[0].filename == __file__
    assert batch.data.column_names == [*INTERLEAVED_SCHEMA.names, "j", "gone", "n"]
    assert batch.data["gone"].null_count == batch.num_rows
    assert is_json(batch.data.schema.field("j"))
    assert read(kind, tmp_path, fields=()).column_names == INTERLEAVED_SCHEMA.names
    with pytest.raises(ValueError, match="position, sample_id are always read"):
        reader_for(kind, str(tmp_path), fields=["sample_id", "position", "x"])
    with pytest.raises(TypeError, match="not one string"):
        reader_for(kind, str(tmp_path), fields="name")


@pytest.mark.parametrize("kind", FORMATS)
def test_schema_and_overrides(tmp_path: Path, kind: str) -> None:
    write(kind, tmp_path, batch_of([item("a", n=2**40, j='{"a":1}')], EXTRAS))
    strict = pa.schema(
        [pa.field("n", pa.float64()), pa.field("sample_id", pa.large_string()), pa.field("new", pa.int8())]
    )
    assert read(kind, tmp_path, schema=strict).equals(pa.table([[2.0**40], ["a"], [None]], schema=strict))
    changed = read(
        kind, tmp_path, schema_overrides={"n": pa.float64(), "position": pa.int64(), "new": pa.string()}
    )
    types = {field.name: field.type for field in changed.schema}
    assert (types["n"], types["position"], types["new"], types["j"]) == (
        pa.float64(),
        pa.int64(),
        pa.string(),
        pa.string(),
    )
    with pytest.raises(ShardError, match="column 'n'") as caught:
        read(kind, tmp_path, schema_overrides={"n": pa.int8()})
    assert isinstance(caught.value.__cause__, SchemaMismatch)


def bytes_read() -> int:
    """Bytes that this process has read so far, mapped files not counted. Linux."""
    found = re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text())
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("kind", FORMATS)
def test_a_projection_reads_no_image_bytes(tmp_path: Path, kind: str) -> None:
    pictures = [item("a", n, "image", binary_content=PNG + os.urandom(4 << 20)) for n in range(3)]
    write(kind, tmp_path, batch_of([item("a"), *pictures]))
    reader = reader_for(kind, str(tmp_path), max_batch_bytes=2000)
    before = bytes_read()
    _, tables = reader.project(reader.partitions()[0], ["position", "sample_id"])
    found = pa.concat_tables(list(tables))
    assert bytes_read() - before < 4 << 20
    assert found.column_names == ["position", "sample_id"]
    assert found.column("position").to_pylist() == [-1, 0, 1, 2]


@pytest.mark.parametrize("kind", FORMATS)
def test_readers_can_be_iterated_again(tmp_path: Path, kind: str) -> None:
    write(kind, tmp_path, batch_of(uneven(0, 3), EXTRAS))
    reader = reader_for(kind, str(tmp_path), max_batch_bytes=1)
    same(as_table(reader), as_table(reader))


@pytest.mark.parametrize("kind", FORMATS)
def test_the_schema_is_known_before_the_first_batch(tmp_path: Path, kind: str) -> None:
    write(
        kind,
        tmp_path,
        batch_of(ROWS, COLUMNS, partition="part"),
        on_materialize_error="warn",
        materialize=False,
    )
    reader = reader_for(kind, str(tmp_path))
    stream = reader.open(reader.partitions()[0])
    assert stream.schema.equals(TABLE.schema, check_metadata=True)
    assert stream.items == len(ROWS)
    assert all(batch.data.schema.equals(stream.schema, check_metadata=True) for batch in stream)


@pytest.mark.parametrize("kind", FORMATS)
def test_wherever_a_file_is_cut_no_row_is_missing_in_silence(tmp_path: Path, kind: str) -> None:
    """Also between two batches, where what is left looks whole."""
    batches = [
        batch_of([item(name, 0, text_content=name)], partition="part") for name in ("a", "b", "c", "d")
    ]
    write(kind, tmp_path, batches)
    whole = read(kind, tmp_path)
    data = main_file(output(kind, tmp_path))
    content = data.read_bytes()
    for size in {*range(0, len(content), 64), len(content) - 8, len(content) - 1}:
        data.write_bytes(content[:size])
        try:
            found = read(kind, tmp_path)
        except ValueError as error:
            assert len(str(error).splitlines()) == 1
        else:
            assert found.equals(whole), size
            assert set(content[size:]) <= {0}, size  # padding behind the end of a tar


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_that_was_cut_is_one_line_that_names_it(tmp_path: Path, kind: str) -> None:
    write(kind, tmp_path, batch_of(ROWS[:3], COLUMNS, partition="part"))
    path = output(kind, tmp_path)
    cut_short(path)
    with pytest.raises(ValueError, match=re.escape(str(path))) as caught:
        read(kind, tmp_path)
    assert len(str(caught.value).splitlines()) == 1
