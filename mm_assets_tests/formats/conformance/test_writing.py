"""What writers promise: policies, reports, schemas, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mm_assets.formats.registry import reader_for, writer_for
from mm_assets.interleaved import INTERLEAVED_SCHEMA, InterleavedBatch, MaterializeError, build_source_ref
from mm_assets.model.json_codec import is_json, json_field
from mm_assets.model.losses import POLICIES
from mm_assets_tests.formats.any_tables import same
from mm_assets_tests.formats.conformance.outputs import PNG, N, rows, visible
from mm_assets_tests.formats.datasets import FORMATS, batch_of, item, read, write
from mm_assets_tests.formats.raw_tars import make_tar


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
        assert visible(kind, tmp_path / "out") == set()
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
    assert visible(kind, tmp_path) == set()


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
