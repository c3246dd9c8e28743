"""What the readers of all formats promise: batches, lineage, columns, partitions."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets.formats import InterleavedArrowDataset, MultiModalWebDataset
from mm_assets.formats.batching import row_bytes
from mm_assets.formats.paired.dataset import GroupReport, Names
from mm_assets.formats.registry import reader_for, writer_for
from mm_assets.interleaved import (
    INTERLEAVED_SCHEMA,
    InterleavedLanceReader,
    InterleavedParquetReader,
    InterleavedWebdatasetReader,
)
from mm_assets.model.errors import ShardError
from mm_assets.model.json_codec import json_field
from mm_assets_tests.formats.any_tables import same
from mm_assets_tests.formats.datasets import as_table, batch_of, item, read, table_of, write
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.odd_samples import hostile
from mm_assets_tests.formats.raw_tars import make_tar

EXTRAS = [
    pa.field("n", pa.int64()), pa.field("tags", pa.list_(pa.string())),
    pa.field("s", pa.struct([("a", pa.string()), ("b", pa.list_(pa.int8()))])),
    pa.field("m", pa.map_(pa.string(), pa.binary())), pa.field("f", pa.list_(pa.float32(), 3)),
    json_field("j"), pa.field("nothing", pa.null()),
    *(pa.field(f"wide{i}", pa.int64()) for i in range(20)),
]  # fmt: skip


def uneven(number: int, samples: int = 30) -> list[dict[str, Any]]:
    """Samples of very different sizes, in every column kind."""
    rows = []
    for i in range(samples):
        name = f"{number}-{i}"
        heavy = 4000 if i % 11 == 3 else 3
        rows += [
            item(
                name,
                n=i,
                tags=["t" * 5] * heavy,
                s={"a": "x" * (i * 50), "b": [1] * heavy},
                m=[("k", b"v" * heavy)],
                f=[1, 2, 3],
                j='{"a":1}',
            ),
            item(name, 0, text_content="é" * (i * 37)),
            item(name, 1, "image", binary_content=bytes(1 + (i * 977) % 9000), content_type="image/png"),
        ]
    return rows


@pytest.mark.parametrize("limit", [1, 2000, 50_000])
def test_batches_of_a_raw_shard_are_within_their_bytes(tmp_path: Path, limit: int) -> None:
    shard = make_tar(tmp_path / "x.tar", hostile())
    batches = list(InterleavedWebdatasetReader(str(shard), max_batch_bytes=limit))
    assert all(batch.nbytes <= limit or batch.num_samples == 1 for batch in batches)
    same(as_table(batches), read("webdataset", shard))


def test_fetched_bytes_count_too(tmp_path: Path) -> None:
    members: list[tuple[str, Any]] = []
    for i in range(20):
        members += [
            (f"{i}.json", {"images": [f"{i}.png"]}),
            (f"{i}.png", b"\x89PNG\r\n\x1a\n" + bytes(50_000)),
        ]
    shard = make_tar(tmp_path / "x.tar", members)
    write(
        "parquet",
        tmp_path / "lazy",
        InterleavedWebdatasetReader(str(shard), materialize=False),
        materialize=False,
    )
    batches = list(
        InterleavedParquetReader(str(tmp_path / "lazy"), max_batch_bytes=120_000, materialize=True)
    )
    assert sum(batch.data["binary_content"].is_valid().to_pylist().count(True) for batch in batches) == 20
    assert all(batch.nbytes <= 120_000 for batch in batches)
    assert len(batches) == 10


def test_row_bytes_bound_every_slice() -> None:
    table = table_of(uneven(0), EXTRAS)
    chunked = pa.concat_tables([table.slice(0, 7), table.slice(7, 1), table.slice(8)])
    sizes = row_bytes(chunked)
    for start in range(0, table.num_rows, 5):
        for length in (1, 2, 9):
            part = chunked.slice(start, length)
            assert part.nbytes <= sizes[start : start + length].sum()


def test_of_several_files_that_lack_a_field_the_first_is_named(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        make_tar(tmp_path / f"{name}.tar", [(f"{name}.json", {"texts": ["x"]})])
    with pytest.warns(
        UserWarning, match=f"^{tmp_path}/a.tar and 2 more: fields not found, filled with null: gone$"
    ):
        list(reader_for("webdataset", str(tmp_path), files_per_partition=3, fields=["gone"]))


@pytest.mark.parametrize("limit", [None, 2000])
def test_a_strict_schema_without_ids_is_still_cut_at_samples(tmp_path: Path, limit: int | None) -> None:
    write("parquet", tmp_path, batch_of(uneven(0, 5), EXTRAS))
    strict = pa.schema([pa.field("n", pa.int64())])
    batches = list(InterleavedParquetReader(str(tmp_path), schema=strict, max_batch_bytes=limit))
    assert pa.concat_tables([batch.data for batch in batches]).schema.equals(strict)
    assert sum(batch.num_rows for batch in batches) == 15


def test_only_the_columns_asked_for_are_read_from_parquet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("parquet", tmp_path, batch_of(uneven(0, 3), EXTRAS))
    asked: list[list[str]] = []
    original = pq.ParquetFile.read_row_group

    def read_row_group(self: Any, group: int, columns: list[str], **options: Any) -> pa.Table:
        asked.append(columns)
        return original(self, group, columns=columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", read_row_group)
    read("parquet", tmp_path, fields=["n"], schema=None)
    read("parquet", tmp_path, schema=pa.schema([("n", pa.int64())]))
    reader = InterleavedParquetReader(str(tmp_path))
    schema, tables = reader.project(reader.partitions()[0], ["text_content", "n"])
    assert [table.column_names for table in tables] == [["text_content", "n"]]
    assert set(schema.names) > {"binary_content", "n"}
    assert asked[0] == [*INTERLEAVED_SCHEMA.names, "n"]
    assert asked[1] == ["sample_id", "position", "modality", "n"]
    assert set(asked[2]) == {"sample_id", "position", "modality", "text_content", "n"}


@pytest.mark.parametrize(
    "reader", [InterleavedParquetReader, InterleavedWebdatasetReader, InterleavedLanceReader]
)
def test_what_is_not_there_is_named(tmp_path: Path, reader: Any) -> None:
    assert reader([]).partitions() == []
    assert list(reader([])) == []
    for path in (tmp_path / "gone", tmp_path):
        with pytest.raises(FileNotFoundError, match=str(path)):
            list(reader(str(path)))
    with pytest.raises(ValueError, match="max_batch_bytes must be positive"):
        reader("x", max_batch_bytes=0)


def other_parquet(path: Path, table: pa.Table, **options: Any) -> Path:
    pq.write_table(table, path, **options)
    return path


def test_parquet_of_others(tmp_path: Path) -> None:
    """Curator writes large_string, pandas int64 positions and dictionaries, some leave columns out or rows
    unsorted.
    """
    rows = [
        item("b", 1, "image", binary_content=b"x"),
        item("b", 0, text_content="t"),
        item("b", url="u"),
        item("a", url="v"),
        item("a", 0),
    ]
    table = table_of(rows, [pa.field("url", pa.string())]).drop_columns(
        ["source_ref", "materialize_error", "content_type"]
    )
    table = pa.table(
        {
            "sample_id": table["sample_id"].dictionary_encode(),
            "position": table["position"].cast(pa.int64()),
            "modality": table["modality"].cast(pa.large_string()).dictionary_encode(),
            "binary_content": table["binary_content"].cast(pa.binary()),
            "text_content": table["text_content"].cast(pa.large_string()),
            "url": table["url"].dictionary_encode(),
        }
    )
    file = other_parquet(tmp_path / "o.parquet", table, row_group_size=2)
    for limit in (None, 1, 1 << 20):
        found = read("parquet", file, max_batch_bytes=limit)
        assert found.schema.equals(
            pa.schema([*INTERLEAVED_SCHEMA, pa.field("url", pa.string())]), check_metadata=True
        )
        places = list(zip(found["sample_id"].to_pylist(), found["position"].to_pylist(), strict=True))
        assert places == [("b", -1), ("b", 0), ("b", 1), ("a", -1), ("a", 0)]
        assert found["binary_content"].to_pylist() == [None, None, b"x", None, None]
        assert found["url"].to_pylist() == ["u", None, None, "v", None]


def test_parquet_without_rows_or_row_groups(tmp_path: Path) -> None:
    schema = pa.schema([*INTERLEAVED_SCHEMA, pa.field("x", pa.int8())])
    with pq.ParquetWriter(tmp_path / "none.parquet", schema):
        pass
    other_parquet(tmp_path / "empty.parquet", schema.empty_table())
    reader = InterleavedParquetReader(str(tmp_path))
    assert [reader.open(p).schema.names for p in reader.partitions()] == [
        [*INTERLEAVED_SCHEMA.names, "x"]
    ] * 2
    assert sum(batch.num_rows for batch in reader) == 0


@pytest.mark.parametrize("column", ["sample_id", "position", "modality"])
def test_parquet_that_is_not_interleaved_is_named(tmp_path: Path, column: str) -> None:
    file = other_parquet(tmp_path / "o.parquet", table_of([item("a")]).drop_columns([column]))
    with pytest.raises(ShardError, match=rf"o\.parquet: not interleaved data, column '{column}' is missing"):
        read("parquet", file)


@pytest.mark.parametrize("column", ["sample_id", "position", "modality"])
def test_nulls_in_required_columns_are_named(tmp_path: Path, column: str) -> None:
    table = table_of([item("a"), item("b")])
    values = table[column].to_pylist()
    table = table.set_column(
        table.column_names.index(column), column, pa.array([values[0], None], table[column].type)
    )
    with pytest.raises(ShardError, match=rf"o\.parquet: sample .*: {column} is null"):
        read("parquet", other_parquet(tmp_path / "o.parquet", table))


def test_a_position_of_64_bits_is_not_wrapped(tmp_path: Path) -> None:
    table = table_of([item("a", 0)]).set_column(1, "position", pa.array([2**32]))
    with pytest.raises(ShardError, match=r"o\.parquet: sample 'a'.* does not fit 32 bits"):
        read("parquet", other_parquet(tmp_path / "o.parquet", table))


def test_columns_with_dots_are_not_parts_of_structs(tmp_path: Path) -> None:
    extras = [
        pa.field("x", pa.struct([("y", pa.int8()), ("z", pa.int8())])),
        pa.field("x.y", pa.string()),
        pa.field("x.z", pa.int64()),
    ]
    write(
        "parquet", tmp_path, batch_of([item("a", **{"x": {"y": 1, "z": 2}, "x.y": "flat", "x.z": 5})], extras)
    )
    for fields in (["x"], ["x.y"], ["x.z", "x"], ["x", "x.y", "x.z"]):
        found = read("parquet", tmp_path, fields=fields)
        assert found.column_names[8:] == fields
        expected = {"x": [{"y": 1, "z": 2}], "x.y": ["flat"], "x.z": [5]}
        assert {name: found[name].to_pylist() for name in fields} == {name: expected[name] for name in fields}


def test_lance_of_others(tmp_path: Path) -> None:
    import lance

    table = table_of(
        [item("b", 1, "image", binary_content=b"x"), item("b", url="u"), item("a", 0)],
        [pa.field("url", pa.string())],
    )
    table = table.drop_columns(["materialize_error"]).set_column(1, "position", pa.array([1, -1, 0]))
    lance.write_dataset(table, tmp_path / "o.lance", max_rows_per_file=2)
    reader = InterleavedLanceReader(str(tmp_path))
    assert [p.name for p in reader.partitions()] == ["o"]
    found = as_table(reader)
    assert list(zip(found["sample_id"].to_pylist(), found["position"].to_pylist(), strict=True)) == [
        ("b", -1),
        ("b", 1),
        ("a", 0),
    ]
    assert found.column_names == [*INTERLEAVED_SCHEMA.names, "url"]
    lance.write_dataset(pa.table({"x": [1]}), tmp_path / "q.lance")
    with pytest.raises(ShardError, match=r"q\.lance: not interleaved data"):
        read("lance", tmp_path / "q.lance")


def test_two_lance_tables_with_one_partition_name_are_not_fused(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write("lance", tmp_path / folder, batch_of([item(folder)], partition="p"))
    with pytest.raises(ValueError, match="two inputs would both become partition 'p'"):
        InterleavedLanceReader([str(tmp_path / "a"), str(tmp_path / "b")]).partitions()


def test_inputs_of_one_name_are_not_fused(tmp_path: Path) -> None:
    for name in ("x.tar", "x.tar.gz"):
        make_tar(tmp_path / name, [("a.json", {})], mode="w:gz" if name.endswith("gz") else "w")
    with pytest.raises(ValueError, match="two inputs would both become partition 'x'"):
        InterleavedWebdatasetReader(str(tmp_path)).partitions()


def test_names_of_partitions_do_not_depend_on_where_the_input_lies(tmp_path: Path) -> None:
    names = []
    for root in (tmp_path / "one", tmp_path / "two" / "deeper"):
        for name in ("a/x.tar", "b/x.TAR", "y.tgz"):
            make_tar(root / name, [("s.json", {})], mode="w:gz" if name.endswith("tgz") else "w")
        names.append([p.name for p in InterleavedWebdatasetReader(str(root)).partitions()])
    assert names[0] == names[1] == ["a/x", "b/x", "y"]


def test_shards_that_differ_are_unified_within_a_partition(tmp_path: Path) -> None:
    make_tar(tmp_path / "1.tar", [("a.json", {"n": 1, "k": None, "t": "x"})])
    make_tar(tmp_path / "2.tar", [("b.json", {"n": 1.5, "k": {"z": 1}, "t": 7, "late": True})])
    found = read("webdataset", tmp_path, files_per_partition=2)
    assert found["n"].to_pylist() == [1.0, 1.5]
    assert found["k"].to_pylist() == [None, '{"z":1}']
    assert found["t"].to_pylist() == ['"x"', "7"]
    assert found["late"].to_pylist() == [None, True]


def test_an_integer_no_float_holds_is_reported_across_shards(tmp_path: Path) -> None:
    make_tar(tmp_path / "1.tar", [("a.json", {"n": 2**53 + 1})])
    make_tar(tmp_path / "2.tar", [("b.json", {"n": 1.5})])
    with pytest.raises(ShardError, match=r"1\.tar: column 'n'"):
        read("webdataset", tmp_path, files_per_partition=2)


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
def test_a_tar_without_samples(tmp_path: Path, name: str) -> None:
    shard = make_tar(tmp_path / name, [], mode="w:gz" if name.endswith("gz") else "w")
    reader = InterleavedWebdatasetReader(str(shard), fields=None)
    assert reader.open(reader.partitions()[0]).schema.equals(INTERLEAVED_SCHEMA)
    assert list(reader) == []


def test_unreferenced_members_are_reported(tmp_path: Path) -> None:
    shard = make_tar(
        tmp_path / "x.tar",
        [("a.json", {"images": ["a.png"]}), ("a.png", picture(0)[1]), ("b.png", b"?"), ("notes.txt", b"?")],
    )
    report = write("parquet", tmp_path / "out", InterleavedWebdatasetReader(str(shard)))
    assert report.partitions[0].notes[str(shard)]["unreferenced_members"] == ["b.png", "notes.txt"]


def test_missing_per_item_fields_warn(tmp_path: Path) -> None:
    shard = make_tar(tmp_path / "x.tar", [("a.json", {"texts": ["t"], "lang": ["en"]})])
    with pytest.warns(UserWarning, match="per-item fields not found in any sample: width"):
        list(InterleavedWebdatasetReader(str(shard), per_text_fields=["lang"], per_image_fields=["width"]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(InterleavedWebdatasetReader(str(shard), per_text_fields=["lang"]))
    shard = make_tar(tmp_path / "y.tar", [("a.json", {"texts": ["t"], "lang": "en"})])
    with pytest.raises(ShardError, match=r"y\.tar: a\.json: per-item field 'lang' is no list"):
        list(InterleavedWebdatasetReader(str(shard), per_text_fields=["lang"]))
    (batch,) = InterleavedWebdatasetReader(str(tmp_path / "x.tar"), per_text_fields="lang")
    assert batch.data["lang"].to_pylist() == [None, "en"]
    with pytest.raises(ValueError, match="content_type is a column of its own"):
        InterleavedWebdatasetReader("x", per_text_fields=["content_type"])


def test_locators_are_relative_to_the_folder_named(tmp_path: Path) -> None:
    shard = make_tar(tmp_path / "raw" / "sub" / "x.tar", [("a.json", {"images": ["gone"]})])
    found = read("webdataset", shard, relative_to=str(tmp_path / "raw"))
    assert all(ref.startswith('{"path": "sub/x.tar"') for ref in found["source_ref"].to_pylist())
    assert str(tmp_path) not in str(found.to_pylist())


def test_read_kwargs_are_those_of_read_table(tmp_path: Path) -> None:
    write(
        "parquet",
        tmp_path,
        batch_of(
            [item("a", n=1), item("b", n=2), item("b", 0, text_content="t")], [pa.field("n", pa.int64())]
        ),
    )
    filters = [("sample_id", "==", "b")]
    found = read("parquet", tmp_path, read_kwargs={"filters": filters, "memory_map": True}, fields=())
    assert found["sample_id"].to_pylist() == ["b", "b"]
    assert found.column_names == INTERLEAVED_SCHEMA.names
    found = read(
        "parquet", tmp_path, read_kwargs={"filters": [("n", ">", 1)]}, fields=(), max_batch_bytes=1000
    )
    assert found["sample_id"].to_pylist() == ["b"]
    with pytest.raises(TypeError, match="read_kwargs"):
        read("parquet", tmp_path, read_kwargs={"nonsense": 1})


@pytest.mark.parametrize("rows_a_page", [1, 16, 1024])
def test_a_row_group_of_large_images_comes_in_batches(tmp_path: Path, rows_a_page: int) -> None:
    """Images are read apart from the other columns; a column whose name continues theirs is one of the
    others.
    """
    rows = [
        item(
            f"s{i // 3}",
            i % 3 - 1,
            "image" if i % 3 else "metadata",
            binary_content=bytes([i]) * 100_000 if i % 3 else None,
            x=i,
        )
        for i in range(30)
    ]
    table = table_of(rows, [pa.field("x", pa.int64())])
    table = table.append_column("binary_content.x", table.column("x"))
    pq.write_table(
        table, tmp_path / "one.parquet", row_group_size=30, write_batch_size=rows_a_page, compression="none"
    )
    batches = list(InterleavedParquetReader(tmp_path / "one.parquet", max_batch_bytes=500_000))
    assert max(row_bytes(batch.data).sum() for batch in batches) <= 500_000
    assert len(batches) == 5
    assert pa.concat_tables([batch.data for batch in batches]).equals(table)


def test_representations_are_one_line_however_much_there_is(tmp_path: Path) -> None:
    rows = [item(f"s{number}", 0, "image") for number in range(500)]  # images that are lost
    rows += [item("t", 0, text_content="x")]
    extras = [pa.field(f"column {number}", pa.string()) for number in range(100)]
    report = write("parquet", tmp_path / "out", [batch_of(rows, extras)], on_materialize_error="drop_row")
    (partition,) = report.partitions
    counts = "1 sample, 0 images, 1 text, 0.0 MB, 500 losses, 500 errors"
    reader = reader_for("parquet", [str(tmp_path / "out"), str(tmp_path / "out")], max_batch_bytes=100)
    (first, *_) = batches = list(reader)
    write("arrow_cache", tmp_path / "caches", batches)
    group = GroupReport({"a": "a.tar"}, 900, 900, missing={"b": Names(900, ["k"] * 900)})
    pairs = MultiModalWebDataset({"a": ["a.tar", "b.tar"], "b": ["a.tar", "b.tar"]}, shardshuffle=False)
    told = {
        f"<WriteReport {tmp_path}/out: 1 partition, {counts}>": report,
        f"<PartitionReport {partition.partition!r}: {counts}>": partition,
        f"<InterleavedBatch of {partition.uri}: 1 row, 108 columns>": first,
        f"<InterleavedParquetReader of {tmp_path}/out and 1 more, max_batch_bytes=100>": reader,
        f"<InterleavedParquetWriter into {tmp_path}/new, on_materialize_error='error'>": writer_for(
            "parquet", str(tmp_path / "new")
        ),
        f"<InterleavedArrowDataset of {tmp_path}/caches/{partition.partition}: 1 row>": (
            InterleavedArrowDataset(tmp_path / "caches")
        ),
        "<MultiModalWebDataset of 2 shards: a, b>": pairs,
        f"<GroupReport {group}>": group,
    }
    assert {text: repr(thing) for text, thing in told.items()} == {text: text for text in told}
    assert all("\n" not in text and len(text) < 400 for text in told)
