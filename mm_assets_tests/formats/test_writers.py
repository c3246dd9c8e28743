"""What the writers of all formats promise: policies, reports, names, publication."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets.formats.registry import reader_for, writer_for
from mm_assets.formats.storage import sweep
from mm_assets.interleaved import (
    INTERLEAVED_SCHEMA,
    InterleavedBatch,
    InterleavedParquetReader,
    InterleavedParquetWriter,
    InterleavedWebdatasetWriter,
    MaterializeError,
    build_source_ref,
)
from mm_assets.interleaved.json_values import is_json, json_field
from mm_assets.interleaved.losses import Loss
from mm_assets.interleaved.policies import POLICIES
from mm_assets.interleaved.steps import BatchStream
from mm_assets_tests.formats.datasets import FORMATS, batch_of, item, read, write
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.formats.test_round_trip import same

PNG = picture(0)[1]
N = pa.field("n", pa.int64())


def rows(name: str, **values: Any) -> list[dict[str, Any]]:
    return [
        item(name, content_type="application/json", **values),
        item(name, 0, text_content=f"text of {name}", content_type="text/plain"),
        item(name, 2, "image", binary_content=PNG, content_type="image/png"),
    ]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.name != "lock"
    }


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("policy", POLICIES)
def test_policies_after_fetch(tmp_path: Path, kind: str, policy: str) -> None:
    """Errors of earlier stages and of the fetch itself are treated alike."""
    source = make_tar(tmp_path / "x.tar", [("a.png", PNG)])
    table = batch_of(
        [
            *rows("good", n=1),
            item("fetched", 0, "image", source_ref=build_source_ref(str(source), "a.png")),
            item("lost", -1, n=2),
            item("lost", 3, "image", source_ref=build_source_ref(str(source), "gone.png")),
            item("earlier", -1, n=3),
            item("earlier", 1, text_content="t", materialize_error="was bad"),
        ],
        [N],
        source_files=("x.tar",),
    )
    writer = writer_for(kind, str(tmp_path / "out"), on_materialize_error=policy)
    if policy == "error":
        with pytest.raises(
            MaterializeError,
            match=r"x\.tar: sample 'lost', position 3: missing member 'gone\.png' \(and 1 more",
        ):
            writer.write(table)
        assert not list((tmp_path / "out").glob("*.tar")) + list((tmp_path / "out").glob("*.parquet"))
        return
    if policy == "warn":
        with pytest.warns(UserWarning, match="gone"):
            report = writer.write(table)
    else:
        report = writer.write(table)
    found = {(r["sample_id"], r["position"]): r for r in read(kind, tmp_path / "out").to_pylist()}
    assert found["fetched", 0]["binary_content"] == PNG
    kept = {
        "warn": {("lost", -1), ("lost", 3), ("earlier", -1), ("earlier", 1)},
        "drop_row": {("lost", -1), ("earlier", -1)},
        "drop_sample": set(),
    }[policy]
    assert {place for place in found if place[0] in ("lost", "earlier")} == kept
    assert [(e.sample_id, e.position, e.message) for e in report.errors] == [
        ("lost", 3, "missing member 'gone.png'"),
        ("earlier", 1, "was bad"),
    ]
    part = report.partitions[0]
    assert part.rows + len(part.losses) == 8
    assert len(part.losses) == {"warn": 0, "drop_row": 2, "drop_sample": 4}[policy]
    if policy == "warn":
        assert found["lost", 3]["materialize_error"] == "missing member 'gone.png'"
        assert found["lost", 3]["binary_content"] is None


@pytest.mark.parametrize("kind", FORMATS)
def test_report(tmp_path: Path, kind: str) -> None:
    report = write(
        kind,
        tmp_path,
        [
            batch_of(rows("a", n=1), [N], source_files=("f1",), partition="p"),
            batch_of(rows("b"), [N], partition="q"),
        ],
    )
    assert (report.rows, report.samples, report.images, report.texts) == (6, 2, 2, 2)
    assert [p.partition for p in report.partitions] == ["p", "q"]
    part = report.partitions[0]
    assert (part.source_files, part.image_bytes, part.dropped_columns) == (("f1",), len(PNG), ())
    assert part.schema.names == [*INTERLEAVED_SCHEMA.names, "n"]
    assert report.nbytes > 0
    assert len(report.files) == 2
    assert all(Path(file).exists() for file in report.files)


@pytest.mark.parametrize("kind", FORMATS)
def test_digests_are_those_of_every_other_format(tmp_path: Path, kind: str) -> None:
    source = [batch_of(rows("a", n=1, j='{"b":[1]}'), [N, json_field("j")], partition="p")]
    expected = write("parquet", tmp_path / "expected", source).partitions[0].digest
    report = write(kind, tmp_path / kind, source)
    assert report.partitions[0].digest == expected
    again = write("parquet", tmp_path / "again", reader_for(kind, str(tmp_path / kind), max_batch_bytes=1))
    assert again.partitions[0].digest == expected


@pytest.mark.parametrize("kind", FORMATS)
def test_a_strict_schema_names_what_it_leaves_out(tmp_path: Path, kind: str) -> None:
    strict = pa.schema([*INTERLEAVED_SCHEMA, pa.field("n", pa.float64()), pa.field("new", pa.int8())])
    source = batch_of(
        rows("a", n=1, x="x", y="y"), [pa.field("x", pa.string()), N, pa.field("y", pa.string())]
    )
    report = write(kind, tmp_path, source, schema=strict)
    assert report.dropped_columns == ("x", "y")
    found = read(kind, tmp_path)
    assert found.schema.equals(strict)
    assert found["n"].to_pylist() == [1.0, None, None]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_strict_schema_may_leave_content_out_but_not_ids(tmp_path: Path, kind: str) -> None:
    strict = pa.schema(
        [f for f in INTERLEAVED_SCHEMA if f.name in ("sample_id", "position", "modality", "text_content")]
    )
    report = write(kind, tmp_path / "text", batch_of(rows("a")), schema=strict)
    assert "binary_content" in report.dropped_columns
    found = read(kind, tmp_path / "text")
    assert found["text_content"].to_pylist() == [None, "text of a", None]
    assert found["binary_content"].null_count == 3
    with pytest.raises(ValueError, match="schema= has no column 'position'"):
        write(
            kind,
            tmp_path / "none",
            batch_of(rows("a")),
            schema=pa.schema([INTERLEAVED_SCHEMA.field("sample_id")]),
        )
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("kind", FORMATS)
def test_overrides_keep_the_other_columns(tmp_path: Path, kind: str) -> None:
    source = batch_of(rows("a", n=1, x="x"), [pa.field("x", pa.string()), N])
    report = write(kind, tmp_path, source, schema_overrides={"n": pa.float32()})
    assert report.dropped_columns == ()
    assert read(kind, tmp_path)["n"].type == pa.float32()
    assert read(kind, tmp_path)["x"].to_pylist() == ["x", None, None]


@pytest.mark.parametrize("kind", FORMATS)
def test_the_same_input_makes_the_same_bytes(tmp_path: Path, kind: str) -> None:
    source = [batch_of(rows(f"a{i}", n=i), [N], partition=f"dir/p.{i}") for i in range(3)]
    first = write(kind, tmp_path / "1", source)
    second = write(kind, tmp_path / "1", source)
    assert [p.digest for p in first.partitions] == [p.digest for p in second.partitions]
    if kind == "lance":  # data files have random names; the rows are the same, none twice
        assert read(kind, tmp_path / "1").num_rows == 9
        return
    before = snapshot(tmp_path / "1")
    write(kind, tmp_path / "1", source)
    assert snapshot(tmp_path / "1") == before
    write(kind, tmp_path / "elsewhere" / "1", source)
    assert snapshot(tmp_path / "elsewhere" / "1") == before
    suffix = {"parquet": ".parquet", "webdataset": ".tar", "arrow_cache": "/_metadata.json"}[kind]
    assert {name for name in before if name.endswith(suffix)} == {f"dir%2Fp%2E{i}{suffix}" for i in range(3)}
    assert str(tmp_path).encode() not in b"".join(before.values())


@pytest.mark.parametrize("kind", FORMATS)
def test_a_generator_whose_schema_changes_midway(tmp_path: Path, kind: str) -> None:
    def batches() -> Iterator[InterleavedBatch]:
        yield batch_of(rows("a", n=1), [N])
        yield batch_of(
            rows("b", n=2.5, late="x"), [pa.field("late", pa.string()), pa.field("n", pa.float64())]
        )
        yield batch_of(rows("c", n="three"), [pa.field("n", pa.string())])

    write(kind, tmp_path, batches())
    found = read(kind, tmp_path)
    assert found["n"].to_pylist()[::3] == ["1", "2.5", '"three"']
    assert is_json(found.schema.field("n"))
    assert found["late"].to_pylist()[::3] == [None, "x", None]
    assert found["sample_id"].unique().to_pylist() == ["a", "b", "c"]


@pytest.mark.parametrize("kind", FORMATS)
def test_a_generator_of_many_partitions(tmp_path: Path, kind: str) -> None:
    def batches() -> Iterator[InterleavedBatch]:
        for i in range(6):
            yield batch_of(rows(f"s{i}", n=i), [N], partition=f"p{i % 2}", source_files=(f"f{i}",))

    report = write(kind, tmp_path, batches())
    assert [(p.partition, p.samples, p.source_files) for p in report.partitions] == [
        ("p0", 3, ("f0", "f2", "f4")),
        ("p1", 3, ("f1", "f3", "f5")),
    ]
    assert read(kind, tmp_path)["sample_id"].unique().to_pylist() == ["s0", "s2", "s4", "s1", "s3", "s5"]


@pytest.mark.parametrize("kind", FORMATS)
def test_an_empty_path_is_refused(kind: str) -> None:
    """It would be the root of all files."""
    with pytest.raises(ValueError, match="the path of an output is empty"):
        writer_for(kind, "")
    with pytest.raises(TypeError, match="not NoneType"):
        writer_for(kind, None)  # type: ignore[arg-type]


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


@pytest.mark.parametrize("kind", FORMATS)
def test_nothing_to_write(tmp_path: Path, kind: str) -> None:
    assert write(kind, tmp_path / "a", []).partitions == ()
    report = write(kind, tmp_path / "b", batch_of([], partition="p"))
    assert (report.rows, len(report.partitions)) == (0, 1)
    assert not list((tmp_path / "b").glob("*.tar"))


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


@pytest.mark.parametrize("kind", FORMATS)
def test_an_exception_midway_leaves_the_version_before(tmp_path: Path, kind: str) -> None:
    write(kind, tmp_path, batch_of(rows("old"), partition="p"))
    before = read(kind, tmp_path)
    files = {name for name in snapshot(tmp_path) if not name.startswith("items.lance/data")}

    def batches() -> Iterator[InterleavedBatch]:
        yield batch_of(rows("new"))
        raise Trouble

    stream = BatchStream("p", INTERLEAVED_SCHEMA, batches)
    with pytest.raises(Trouble):
        write(kind, tmp_path, stream)
    same(read(kind, tmp_path), before)
    assert {name for name in snapshot(tmp_path) if not name.startswith("items.lance/data")} == files


@pytest.mark.parametrize("kind", FORMATS)
def test_a_withheld_partition_is_not_published(tmp_path: Path, kind: str) -> None:
    def refuse(report: Any) -> None:
        assert report.rows == 3
        raise Trouble

    batch = batch_of(rows("a"))
    stream = BatchStream("p", batch.data.schema, lambda: [batch])
    with pytest.raises(Trouble):
        writer_for(kind, str(tmp_path)).write_partition(stream, refuse)
    assert not [name for name in snapshot(tmp_path) if not name.startswith("items.lance/data")]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    "bad",
    [
        [item("s", 0, "video")],
        [item("s", 0), item("s", 0)],
        [item("s", 1, "image"), item("s", 1, "image")],
        [item("s"), item("t"), item("s", 0)],
    ],
    ids=["modality", "two texts", "two images", "not consecutive"],
)
def test_what_has_no_place_is_refused_with_file_and_sample(
    tmp_path: Path, kind: str, bad: list[dict[str, Any]]
) -> None:
    with pytest.raises(ValueError, match=r"in\.parquet: sample (id )?'s'"):
        write(kind, tmp_path, batch_of(bad, source_files=("in.parquet",)))
    assert not [name for name in snapshot(tmp_path) if not name.startswith("items.lance/data")]


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


@pytest.mark.parametrize("kind", FORMATS)
def test_gaps_stay_gaps(tmp_path: Path, kind: str) -> None:
    source = batch_of(
        [
            item("a", 3, text_content="t"),
            item("a", 3, "image", binary_content=PNG),
            item("a", 17, "image", binary_content=PNG),
            item("b", 5, text_content="u"),
        ]
    )
    write(kind, tmp_path, source)
    same(read(kind, tmp_path), source.data)


_SLOW = """
import sys, time, pyarrow as pa
from mm_assets.formats.registry import writer_for
from mm_assets.interleaved.losses import Loss
from mm_assets.interleaved.steps import BatchStream
from mm_assets_tests.formats.datasets import batch_of, item
kind, target = sys.argv[1:]
def batches():
    for i in range(10_000):
        yield batch_of([item(f"new{i}", 0, "image", binary_content=bytes(1 << 20))])
        print(i, flush=True)
batch = batch_of([])
writer_for(kind, target).write_partition(BatchStream("p", batch.data.schema, batches))
"""


@pytest.mark.parametrize("kind", FORMATS)
def test_a_kill_leaves_the_version_before_and_nothing_under_a_final_name(tmp_path: Path, kind: str) -> None:
    write(kind, tmp_path, batch_of(rows("old"), partition="p"))
    before = read(kind, tmp_path)
    visible = {name for name in os.listdir(tmp_path) if not name.startswith(".")}
    process = subprocess.Popen(
        [sys.executable, "-c", _SLOW, kind, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    while int(process.stdout.readline()) < 40:
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    same(read(kind, tmp_path), before)
    assert {name for name in os.listdir(tmp_path) if not name.startswith(".")} == visible
    if kind != "lance":
        folder = tmp_path / "p" if kind == "arrow_cache" else tmp_path
        left = [name for name in os.listdir(folder) if name.endswith(".tmp")]
        assert len(left) == 1
        assert sweep(str(folder)) == [str(folder / left[0])]
    write(kind, tmp_path, batch_of(rows("new"), partition="p"))
    if kind == "arrow_cache":
        assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} == {".arrow", ".json"}
    assert read(kind, tmp_path)["sample_id"].unique().to_pylist() == ["new"]


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
        N, pa.field("s", pa.struct([("a", pa.string()), ("b.c", pa.list_(pa.int8()))])), pa.field("l", pa.large_list(pa.string())),
        pa.field("m", pa.map_(pa.string(), pa.list_(pa.int8()))), pa.field("f", pa.list_(pa.float32(), 2)), pa.field("x.y", pa.string()),
        pa.field("u", pa.uuid()), json_field("j"), pa.field("bin", pa.binary()), pa.field("nn", pa.list_(pa.null())),
    ]  # fmt: skip
    big = [
        row
        for i in range(12)
        for row in [item(f"s{i}", n=i, s={"a": "x", "b.c": [1]}, l=["x"], m=[("k", [1])], f=[1, 2], j="{}", nn=[None], u=b"0" * 16),
                    *(item(f"s{i}", k, "image", binary_content=os.urandom(1 << 20)) for k in range(3))]
    ]  # fmt: skip
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
