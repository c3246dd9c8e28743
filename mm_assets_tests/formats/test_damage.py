"""Damage gives a named error or an error row: never other bytes, never a shorter table."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from PIL import Image

from mm_assets.formats.tar import TarDamage
from mm_assets.formats.webdataset import SampleError
from mm_assets.interleaved import InterleavedWebdatasetReader, MaterializeError
from mm_assets.model.errors import BAD_JSON, LONE_SURROGATE, NOT_AN_OBJECT, NOT_UTF8, ShardError
from mm_assets_tests.formats.datasets import batch_of, item, read, write
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.images.tiff_tools import tiff_of
from mm_assets_tests.formats.raw_tars import make_tar

PNG = picture(0)[1]
GOOD = [("good.json", {"texts": ["t"], "images": ["good.png"]}), ("good.png", PNG)]


def rows_of(shard: Path, **options: Any) -> list[dict[str, Any]]:
    return read("webdataset", shard, **options).to_pylist()


def images_of(shard: Path, **options: Any) -> list[dict[str, Any]]:
    return [row for row in rows_of(shard, **options) if row["modality"] == "image"]


def test_missing_member_is_an_error_row(tmp_path: Path) -> None:
    members = [
        ("a.json", {"images": ["a.png", "gone.png", "a.png"], "texts": []}),
        ("a.png", PNG),
        ("z.png", b"other"),
    ]
    first, lost, third = images_of(make_tar(tmp_path / "x.tar", members))
    assert first["binary_content"] == third["binary_content"] == PNG
    assert lost["binary_content"] is None
    assert lost["materialize_error"] == "missing member 'gone.png'"
    assert lost["position"] == 1


def test_lost_member_next_to_a_tiff_is_no_frame_of_it(tmp_path: Path) -> None:
    members = [("a.json", {"images": ["x.png", "y.png"], "texts": []}), ("a.tiff", tiff_of(2))]
    assert [row["materialize_error"] for row in images_of(make_tar(tmp_path / "x.tar", members))] == [
        "missing member 'x.png'",
        "missing member 'y.png'",
    ]


@pytest.mark.parametrize(
    ("data", "kind", "said"),
    [
        (b'{"texts": [', BAD_JSON, "not JSON"),
        (b"", BAD_JSON, "not JSON"),
        (b'{"texts": ["\xff\xfe"]}', NOT_UTF8, "not UTF-8"),
        (b'{"texts": ["\\ud800"]}', LONE_SURROGATE, "lone surrogate"),
        (b'{"\\udfff": 1}', LONE_SURROGATE, "lone surrogate"),
        (b"[1, 2]", NOT_AN_OBJECT, "no object but list"),
        (b"null", NOT_AN_OBJECT, "no object but NoneType"),
        (b'{"a": 1, "texts": [], "a": 2}', BAD_JSON, "'a' occurs twice"),
        (b'{"n": {"a": 1, "a": 2}}', BAD_JSON, "'a' occurs twice"),
        (b'{"n": ' + b"[" * 900 + b"]" * 900 + b"}", BAD_JSON, "nested too deeply"),
        (b'{"n": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", BAD_JSON, "nested too deeply"),
        (b'{"n": ' + b"9" * 5000 + b"}", BAD_JSON, "not JSON"),
    ],
    ids=lambda v: str(v)[:25],
)
def test_bad_json_is_named(tmp_path: Path, data: bytes, kind: str, said: str) -> None:
    shard = make_tar(tmp_path / "x.tar", [*GOOD, ("dir/bad.json", data)])
    with pytest.raises(SampleError, match=said) as caught:
        rows_of(shard)
    assert caught.value.kind == kind
    assert isinstance(caught.value, ShardError)
    assert str(caught.value).startswith(f"{shard}: dir/bad.json: ")


def test_a_byte_order_mark_is_no_damage(tmp_path: Path) -> None:
    shard = make_tar(tmp_path / "x.tar", [("a.json", b"\xef\xbb\xbf" + b'{"texts": ["t"]}')])
    assert [row["text_content"] for row in rows_of(shard)] == [None, "t"]


def test_a_tar_cut_anywhere_is_never_a_shorter_one(tmp_path: Path) -> None:
    whole = make_tar(
        tmp_path / "whole.tar",
        [*GOOD, *[(f"n{i}.json", {"texts": [str(i)]}) for i in range(3)]],
        kind=tarfile.USTAR_FORMAT,
    )
    data = whole.read_bytes()
    expected = rows_of(whole)
    cut = tmp_path / "cut.tar"
    refused = 0
    for size in [*range(0, len(data), 512), 1, 511, 700]:
        cut.write_bytes(data[:size])
        try:
            rows = rows_of(cut)
        except ValueError as error:
            assert isinstance(error, TarDamage | ShardError)
            assert "cut.tar" in str(error)
            refused += 1
        else:  # padding of the record is no part of the data
            assert [{**r, "source_ref": None} for r in rows] == [{**r, "source_ref": None} for r in expected]
            assert not data[size:].strip(b"\0")
    assert refused >= 10


@pytest.mark.parametrize("cut", [10, 100, -1, -8, -9, -600])
def test_a_packed_tar_cut_anywhere_is_refused(tmp_path: Path, cut: int) -> None:
    shard = make_tar(tmp_path / "x.tar.gz", GOOD, mode="w:gz")
    assert len(rows_of(shard)) == 3
    shard.write_bytes(shard.read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"x\.tar\.gz"):
        rows_of(shard)


def test_unreadable_image_keeps_its_bytes_and_a_filter_names_it(tmp_path: Path) -> None:
    from mm_assets.filters.registry import AspectRatioFilter

    shard = make_tar(
        tmp_path / "x.tar", [("a.json", {"images": ["a.png"]}), ("a.png", b"\x89PNG\r\n\x1a\nnonsense")]
    )
    assert images_of(shard)[0]["binary_content"] == b"\x89PNG\r\n\x1a\nnonsense"
    (batch,) = InterleavedWebdatasetReader(str(shard))
    (row,) = (r for r in AspectRatioFilter(0.5, 2)(batch).batch.data.to_pylist() if r["modality"] == "image")
    assert row["materialize_error"].startswith("unreadable image: ")
    assert row["binary_content"] is not None


def test_fewer_frames_than_references(tmp_path: Path) -> None:
    shard = make_tar(
        tmp_path / "x.tar", [("a.json", {"images": ["p0", None, "p1", "p2"]}), ("a.tiff", tiff_of(2))]
    )
    first, second, third = images_of(shard)
    assert first["binary_content"] != second["binary_content"]
    assert third["binary_content"] is None
    assert (
        third["materialize_error"]
        == "dangling reference: frame 2 of 'a.tiff': it has 2 frames for 3 references"
    )


def test_more_frames_than_references_are_reported(tmp_path: Path) -> None:
    shard = make_tar(tmp_path / "x.tar", [("a.json", {"images": ["p0", "p1"]}), ("a.tiff", tiff_of(5))])
    report = write(
        "parquet", tmp_path / "out", InterleavedWebdatasetReader(str(shard), max_batch_bytes=1 << 20)
    )
    assert report.partitions[0].notes[str(shard)]["unreferenced_frames"] == ["a.tiff: 3 of 5 frames"]


@pytest.mark.parametrize(
    "data", [b"", b"II*\0", b"II*\0\xff\xff\xff\xff", b"not a tiff at all", tiff_of(3)[:900]]
)
def test_damaged_tiff_is_an_error_row_for_each_frame(tmp_path: Path, data: bytes) -> None:
    shard = make_tar(tmp_path / "x.tar", [("a.json", {"images": ["p0", "p1", "p2"]}), ("a.tiff", data)])
    for row in images_of(shard):
        assert row["binary_content"] is None
        assert "failed to extract frame" in row["materialize_error"]


def test_one_damaged_frame_costs_only_itself(tmp_path: Path) -> None:
    data = bytearray(tiff_of(3))
    first = int.from_bytes(data[4:8], "little")
    entries = int.from_bytes(data[first : first + 2], "little")
    for at in range(first + 2, first + 2 + 12 * entries, 12):
        if int.from_bytes(data[at : at + 2], "little") == 273:  # strip offsets of frame 0: beyond the file
            data[at + 8 : at + 12] = b"\xff\xff\xff\x7f"
    shard = make_tar(
        tmp_path / "x.tar", [("a.json", {"images": ["p0", "p1", "p2"]}), ("a.tiff", bytes(data))]
    )
    assert [row["binary_content"] is None for row in images_of(shard)] == [True, False, False]


def test_ambiguous_member_names(tmp_path: Path) -> None:
    members = [("a.json", {"images": ["a.png"]}), ("a.png", PNG), ("a.png", b"second")]
    (row,) = images_of(make_tar(tmp_path / "x.tar", members))
    assert row["binary_content"] is None
    assert row["materialize_error"] == "ambiguous: 2 members are called 'a.png'"


def test_reference_that_fits_two_members(tmp_path: Path) -> None:
    members = [("d/a.json", {"images": ["i.png"]}), ("i.png", PNG), ("d/i.png", b"other")]
    (row,) = images_of(make_tar(tmp_path / "x.tar", members))
    assert row["binary_content"] is None
    assert row["materialize_error"] == "ambiguous reference 'i.png': members 'i.png', 'd/i.png'"


def linked(path: Path, links: list[tuple[str, str, bytes]], members: list[tuple[str, Any]]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, value in members:
            info = tarfile.TarInfo(name)
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for name, target, kind in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            tar.addfile(info)
    return path


@pytest.mark.parametrize(
    ("links", "said"),
    [
        ([("a.png", "b.png", tarfile.SYMTYPE), ("b.png", "a.png", tarfile.SYMTYPE)], "leads back to itself"),
        ([("a.png", "a.png", tarfile.LNKTYPE)], "leads back to itself"),
        ([("a.png", "/etc/passwd", tarfile.SYMTYPE)], "outside the tar"),
        ([("a.png", "../../etc/passwd", tarfile.SYMTYPE)], "outside the tar"),
        ([("a.png", "/etc/passwd", tarfile.LNKTYPE)], "no file of this tar"),
        ([("a.png", "nowhere", tarfile.SYMTYPE)], "no file of this tar"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_links_that_lead_nowhere(tmp_path: Path, links: list[tuple[str, str, bytes]], said: str) -> None:
    (row,) = images_of(linked(tmp_path / "x.tar", links, [("a.json", {"images": ["a.png"]})]))
    assert row["binary_content"] is None
    assert row["materialize_error"].startswith("dangling reference: member 'a.png': ")
    assert said in row["materialize_error"]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_links_inside_the_tar_are_followed(tmp_path: Path, kind: bytes) -> None:
    (row,) = images_of(
        linked(
            tmp_path / "x.tar",
            [("l.png", "a.png", kind)],
            [("a.json", {"images": ["l.png"]}), ("a.png", PNG)],
        )
    )
    assert row["binary_content"] == PNG
    assert json.loads(row["source_ref"])["member"] == "l.png"


def test_a_json_that_is_a_broken_link_is_no_silent_loss(tmp_path: Path) -> None:
    shard = linked(tmp_path / "x.tar", [("b.json", "../x.json", tarfile.SYMTYPE)], GOOD)
    with pytest.raises(SampleError, match=r"x\.tar: b\.json: links to .* outside the tar"):
        rows_of(shard)


def test_a_json_whose_name_is_not_utf8_is_no_silent_loss(tmp_path: Path) -> None:
    shard = tmp_path / "x.tar"
    with tarfile.open(shard, "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as tar:
        info = tarfile.TarInfo("caf\xe9.json")
        info.size = 2
        tar.addfile(info, io.BytesIO(b"{}"))
    with pytest.raises(SampleError, match=r"x\.tar: .*json"):
        rows_of(shard)


def test_members_that_are_no_files_are_reported(tmp_path: Path) -> None:
    shard = tmp_path / "x.tar"
    with tarfile.open(shard, "w") as tar:
        for name, kind in (("pipe.png", tarfile.FIFOTYPE), ("dev", tarfile.CHRTYPE)):
            info = tarfile.TarInfo(name)
            info.type = kind
            tar.addfile(info)
        info = tarfile.TarInfo("a.json")
        data = b'{"images": ["pipe.png"]}'
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    report = write(
        "parquet", tmp_path / "out", InterleavedWebdatasetReader(str(shard)), on_materialize_error="warn"
    )
    assert report.partitions[0].notes[str(shard)]["skipped_members"] == ["pipe.png", "dev"]
    assert report.errors[0].message == "missing member 'pipe.png'"


def own_tar(
    path: Path, edit: Any = None, drop: str | None = None, more: list[tuple[str, Any]] | None = None
) -> Path:
    """A tar of our writer with two samples, its members changed afterwards."""
    rows = []
    for sample_id in ("a", "3"):
        rows += [
            item(sample_id, extra="x"),
            item(sample_id, 0, text_content="t", content_type="text/plain"),
            item(
                sample_id,
                3,
                "image",
                binary_content=picture(0 if sample_id == "a" else 13)[1],
                content_type="image/png",
            ),
        ]
    write("webdataset", path, batch_of(rows, [pa.field("extra", pa.string())]))
    with tarfile.open(path) as tar:
        members: list[tuple[str, Any]] = [
            (info.name, tar.extractfile(info).read()) for info in tar.getmembers()
        ]  # type: ignore[union-attr]
    changed = []
    for name, data in members:
        if name == drop:
            continue
        if name == "a.json" and edit is not None:
            payload = json.loads(data)
            edit(payload)
            data = payload
        changed.append((name, data))
    return make_tar(path, [*changed, *(more or [])])


def test_a_member_lost_from_our_own_tar_is_not_another_samples(tmp_path: Path) -> None:
    """Key ``3`` makes ``3.png`` a full member name: it must not stand in for position 3 of sample ``a``."""
    shard = own_tar(tmp_path / "x.tar", drop="a.3.png", more=[("3.png", PNG)])
    lost, kept = images_of(shard)
    assert (lost["sample_id"], lost["binary_content"], lost["materialize_error"]) == (
        "a",
        None,
        "missing member 'a.3.png'",
    )
    assert kept["binary_content"] == picture(13)[1]


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda p: p.update(sample_id=5), "'sample_id' is no string"),
        (lambda p: p.update(texts="t"), "'texts' is no list"),
        (lambda p: p.update(images={"a": 1}), "'images' is no list"),
        (lambda p: p["_row_extra"].update(text=[]), "_row_extra.text does not align"),
        (lambda p: p["_row_extra"].update(image={"a": 1}), "_row_extra.image does not align"),
        (lambda p: p["_row_extra"]["text"].__setitem__(1, {"extra": "?"}), "where there is no item"),
        (lambda p: p["_row_extra"]["text"].__setitem__(0, [1]), "no object"),
        (lambda p: p["_row_extra"].update(metadata=[1]), "_row_extra.metadata: no object"),
        (lambda p: p["_row_extra"]["metadata"].update(new=1), "'new' is in no column"),
        (lambda p: p.update(new=1), "'new' is in no column"),
        (lambda p: p["_row_extra"]["metadata"].update(extra=[1]), "sample 'a'"),
        (lambda p: p.update(_row_errors={"a": 1}), "_row_errors is no list"),
        (lambda p: p.update(_row_errors=[5]), "no object"),
        (lambda p: p.update(_row_errors=[{}]), "no item has this modality"),
        (lambda p: p.update(_row_errors=[{"modality": "video", "position": 1}]), "no item has this modality"),
        (
            lambda p: p.update(_row_errors=[{"modality": "text", "position": "1"}]),
            "no item has this modality",
        ),
        (
            lambda p: p.update(_row_errors=[{"modality": "metadata", "position": 1}]),
            "no item has this modality",
        ),
        (lambda p: p.update(_row_errors=[{"modality": "text", "position": 2**40}]), "x.tar"),
        (
            lambda p: p.update(_row_errors=[{"modality": "text", "position": 1, "materialize_error": 5}]),
            "x.tar",
        ),
        (lambda p: p.update(_mm_assets=5), "'_mm_assets' does not fit"),
        (lambda p: p.update(_mm_assets={}), "'_mm_assets' does not fit"),
        (lambda p: p["_mm_assets"].update(schema="AAAA"), "'_mm_assets' does not fit"),
        (
            lambda p: p["_mm_assets"].update(refs=None, rows={"text": [], "image": {}}),
            "'_mm_assets' does not fit",
        ),
        (lambda p: p["_mm_assets"]["rows"]["text"].update({"7": {"ref": 0}}), "'_mm_assets' does not fit"),
        (lambda p: p["_mm_assets"]["rows"]["text"].update({"0": {"ref": 99}}), "'_mm_assets' does not fit"),
        (lambda p: p["_mm_assets"]["rows"]["text"].update({"0": 5}), "'_mm_assets' does not fit"),
        (
            lambda p: p["_mm_assets"]["rows"]["image"].update({"3": {"binary_content": "%"}}),
            "'_mm_assets' does not fit",
        ),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_an_edited_json_of_ours_is_refused_by_name(tmp_path: Path, edit: Any, said: str) -> None:
    shard = own_tar(tmp_path / "x.tar", edit)
    with pytest.raises(ShardError) as caught:
        rows_of(shard)
    assert said in str(caught.value)
    assert "x.tar" in str(caught.value)


def test_a_json_without_our_bookkeeping_is_typed_anew(tmp_path: Path) -> None:
    def edit(payload: dict[str, Any]) -> None:
        del payload["_mm_assets"]
        payload |= {"new": 1, "position": 9}

    table = read("webdataset", own_tar(tmp_path / "x.tar", edit))
    metadata = table.to_pylist()[0]
    assert (metadata["new"], metadata["extra"]) == (1, "x")
    assert json.loads(metadata["_source"])["fields"] == {"position": 9}


class _Boom:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch PICKLE_WAS_LOADED",)


def test_pickle_in_a_schema_is_never_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hostile = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(_Boom()),
    }
    schema = pa.schema([pa.field("extra", pa.string(), metadata=hostile)])
    text = base64.b64encode(schema.serialize()).decode()
    shard = own_tar(tmp_path / "x.tar", lambda p: p["_mm_assets"].update(schema=text))
    with contextlib.suppress(ValueError):
        rows_of(shard)
    assert not Path("PICKLE_WAS_LOADED").exists()


def test_a_decompression_bomb_is_measured_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mm_assets.filters.scores import score_table

    out = io.BytesIO()
    Image.new("1", (30_000, 20_000)).save(out, "PNG")
    shard = make_tar(tmp_path / "x.tar", [("a.json", {"images": ["a.png"]}), ("a.png", out.getvalue())])
    monkeypatch.setattr(Image.Image, "load", lambda *_: pytest.fail("decoded"))
    (batch,) = InterleavedWebdatasetReader(str(shard))
    score = score_table(batch.data).to_pylist()[0]
    assert (score["width"], score["height"], score["error"]) == (30_000, 20_000, None)


@pytest.mark.parametrize("kind", ["parquet", "webdataset", "lance"])
def test_duplicate_ids_are_refused_with_the_file(tmp_path: Path, kind: str) -> None:
    shard = make_tar(
        tmp_path / "x.tar",
        [
            ("a.json", {"sample_id": "same"}),
            ("b.json", {"sample_id": "other"}),
            ("c.json", {"sample_id": "same"}),
        ],
    )
    with pytest.raises(ShardError, match=r"x\.tar: sample id 'same' occurs twice"):
        write(kind, tmp_path / "out", InterleavedWebdatasetReader(str(shard), max_batch_bytes=1))
    assert not list((tmp_path / "out").glob("*.tar")) and not list((tmp_path / "out").glob("*.parquet"))


def test_policy_names_file_sample_and_position(tmp_path: Path) -> None:
    shard = make_tar(tmp_path / "x.tar", [("a.json", {"images": [None, "gone.png"]})])
    with pytest.raises(MaterializeError, match=r"x\.tar: sample 'a', position 1: missing member 'gone\.png'"):
        write("parquet", tmp_path / "out", InterleavedWebdatasetReader(str(shard)))


@pytest.mark.parametrize("size", [0, 3, 8, 100, -1, -4, -100])
def test_a_cut_parquet_file_is_named(tmp_path: Path, size: int) -> None:
    write("parquet", tmp_path, batch_of([item("a", extra=1)]))
    (file,) = tmp_path.glob("*.parquet")
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(ShardError, match=r"part-00000\.parquet: not a readable Parquet file"):
        read("parquet", tmp_path)


def test_flipped_bytes_in_a_parquet_column_are_named(tmp_path: Path) -> None:
    write("parquet", tmp_path, batch_of([item("a", text_content="x" * 5000)]))
    (file,) = tmp_path.glob("*.parquet")
    data = bytearray(file.read_bytes())
    data[8:60] = bytes(52)
    file.write_bytes(data)
    with pytest.raises(ShardError, match=r"part-00000\.parquet: damaged Parquet data"):
        read("parquet", tmp_path)


def test_a_packed_tar_that_unpacks_beyond_measure_is_refused(tmp_path: Path) -> None:
    shard = make_tar(tmp_path / "bomb.tar.gz", [("a.json", {}), ("zeros.png", bytes(300 << 20))], mode="w:gz")
    with pytest.raises(TarDamage, match=r"bomb\.tar\.gz: unpacks to more than"):
        rows_of(shard)
