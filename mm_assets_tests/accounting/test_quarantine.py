"""Quarantine records: the raw bytes of what is faulty, from the shard's own files, within bounds, or a note
why not.
"""

from __future__ import annotations

import gzip
import json
import tarfile
import uuid
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets.accounting import digest_files, items_table, quarantine
from mm_assets.accounting.quarantine import (
    QUARANTINE_SCHEMA,
    publish_quarantine,
    quarantine_table,
    record_names,
)
from mm_assets.formats.partitions import Partition
from mm_assets.formats.webdataset.reader import InterleavedWebdatasetReader
from mm_assets.model.losses import Loss, apply_policy
from mm_assets.model.samples import build_source_ref
from mm_assets_tests.formats.raw_tars import make_tar

BAD = b'{"texts": [nope'
BLOB = bytes(range(256)) * 5
LONG = "z/é" * 40 + ".tiff"
LOST_JSON = json.dumps({"images": ["gone.png"]}).encode()
MEMBERS = [("bad.json", BAD), ("lost.json", LOST_JSON), ("odd.png", BLOB), (LONG, BLOB * 3)]


def loss(
    sample_id: str | None,
    position: int | None = -1,
    modality: str | None = "metadata",
    ref: str | None = None,
    **values: Any,
) -> Loss:
    given = {"outcome": "quarantined", "kind": "bad_json", "reason": "why", "source_ref": ref, **values}
    return Loss(sample_id, position, modality, **given)


def ref_of(path: Path, member: str, name: str | None = None, frame: int | None = None) -> str:
    with tarfile.open(path) as tar:
        info = tar.getmember(member)
    return build_source_ref(name or path.name, member, info.offset_data, info.size, frame)


def records(losses: list[Loss], files: list[str], roots: list[str]) -> list[dict[str, Any]]:
    table = quarantine_table(items_table("curated_parquet", "p", losses), files, roots)
    assert table.schema.equals(QUARANTINE_SCHEMA)
    return table.to_pylist()


def one(given: Loss, file: Path) -> dict[str, Any]:
    (record,) = records([given], [str(file)], [str(file.parent)])
    return record


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    return make_tar(tmp_path / "raw" / "x.tar", MEMBERS)


@pytest.mark.parametrize("where", ["local", "gzip", "remote", "remote gzip"])
def test_raw_is_what_lies_at_the_locator(shard: Path, where: str) -> None:
    file, root, name = str(shard), str(shard.parent), "x.tar"
    plain = shard
    if "gzip" in where:
        packed = shard.with_name("y.tar.gz")
        packed.write_bytes(gzip.compress(shard.read_bytes()))
        file, name = str(packed), packed.name
    if "remote" in where:
        root = f"memory://quarantine-{uuid.uuid4().hex}"
        fsspec.filesystem("memory").pipe(f"{root}/{name}", Path(file).read_bytes())
        file = name = f"{root}/{name}"
    losses = [
        loss("bad", ref=ref_of(plain, "bad.json", name)),
        loss(
            "odd",
            0,
            "image",
            ref_of(plain, "odd.png", name),
            kind="undecodable_image",
            reason="unreadable image: no header",
        ),
        loss("z", 3, "image", ref_of(plain, LONG, name, 2), kind="undecodable_image"),
    ]
    first, second, third = records(losses, [file], [root])
    assert [r["raw"] for r in (first, second, third)] == [BAD, BLOB, BLOB * 3]
    assert [r["raw_note"] for r in (first, second, third)] == [None] * 3
    offset = json.loads(ref_of(plain, "odd.png"))["byte_offset"]
    del second["raw"]
    assert second == {
        "partition": "p",
        "sample_id": "odd",
        "position": 0,
        "modality": "image",
        "kind": "undecodable_image",
        "message": "unreadable image: no header",
        "source_uri": name,
        "member": "odd.png",
        "byte_offset": offset,
        "byte_size": len(BLOB),
        "raw_note": None,
    }


def test_only_faulty_items_are_recorded(shard: Path) -> None:
    ref = ref_of(shard, "bad.json")
    losses = [
        loss("a", 1, "image", ref, outcome="filtered", kind="aspect_ratio"),
        loss("b", 0, "text", ref, kind="incomplete_sample", is_cause=False),
        loss("c", ref=ref),
    ]
    assert [r["sample_id"] for r in records(losses, [str(shard)], [str(shard.parent)])] == ["c"]
    assert records(losses[:2], [str(shard)], [str(shard.parent)]) == []
    assert records([], [], []) == []


def _missing(sample_id: str = "lost") -> Loss:
    return loss(
        sample_id,
        0,
        "image",
        build_source_ref("x.tar", "gone.png"),
        kind="missing_member",
        reason="missing member 'gone.png'",
    )


def test_a_missing_member_is_told_by_the_json_of_its_sample(shard: Path) -> None:
    document = loss("lost", ref=ref_of(shard, "lost.json"), kind="incomplete_sample", is_cause=False)
    (record,) = records([document, _missing()], [str(shard)], [str(shard.parent)])
    place = json.loads(ref_of(shard, "lost.json"))
    assert (record["raw"], record["member"]) == (LOST_JSON, "gone.png")
    assert (record["source_uri"], record["byte_offset"], record["byte_size"]) == (
        "x.tar",
        place["byte_offset"],
        len(LOST_JSON),
    )
    assert record["raw_note"] == "the document of its sample: the item has no bytes of its own"


def test_a_json_that_may_be_of_another_sample_is_not_taken(shard: Path) -> None:
    one_of_two = [loss("lost", ref=ref_of(shard, name), is_cause=False) for name in ("lost.json", "bad.json")]
    other = loss("other", ref=ref_of(shard, "lost.json"), is_cause=False)
    for around in ([], one_of_two, [other]):
        (record,) = records([*around, _missing()], [str(shard)], [str(shard.parent)])
        assert record["raw"] is None
        assert (
            record["raw_note"]
            == "it has no bytes of its own, and the document of its sample is not in quarantine"
        )


def test_the_json_is_that_of_the_sample_that_stands_not_of_one_with_its_id(tmp_path: Path) -> None:
    first, again = {"sample_id": "a", "images": ["gone.png"]}, {"sample_id": "a", "images": ["other.png"]}
    shard = make_tar(tmp_path / "raw" / "x.tar", [("1.json", first), ("2.json", again), ("a.json", BAD)])
    found = InterleavedWebdatasetReader(
        str(shard), quarantine_errors=True, relative_to=str(shard.parent)
    ).open(Partition("p", (str(shard),)))
    (batch,) = found
    losses = [*found.losses, *apply_policy(batch.data, "drop_sample").losses]
    made = records(losses, [str(shard)], [str(shard.parent)])
    assert {(r["kind"], r["member"], r["raw"]) for r in made} == {
        ("duplicate_id", "2.json", json.dumps(again).encode()),
        ("missing_member", "gone.png", json.dumps(first).encode()),
        ("bad_json", "a.json", BAD),
    }
    dropped_row = [loss for loss in losses if loss.kind != "incomplete_sample"]
    (alone,) = [
        r for r in records(dropped_row, [str(shard)], [str(shard.parent)]) if r["kind"] == "missing_member"
    ]
    assert (alone["raw"], alone["byte_offset"]) == (None, None), (
        "the json of the sample that stands is not in quarantine"
    )


@pytest.mark.parametrize(
    ("offset", "size", "raw", "note"),
    [
        (512, None, lambda data: data[512:], "its first bytes, 1048576 at most"),
        (512, 700, lambda data: data[512:1212], "its first bytes, 1048576 at most"),
        (None, None, lambda data: data, "its first bytes, 1048576 at most"),
        (20480, None, None, "nothing follows: the file ends here"),
        (20480, 0, None, "nothing follows: the file ends here"),
        (512, 1 << 40, None, "x.tar: range 512+1048576 is outside the file of 20480 bytes"),
    ],
)
def test_a_damaged_stretch_gives_its_first_bytes(
    shard: Path, offset: int | None, size: int | None, raw: Any, note: str
) -> None:
    assert shard.stat().st_size == 20480
    record = one(
        loss(None, None, None, build_source_ref("x.tar", None, offset, size), kind="damaged_tar"), shard
    )
    assert record["raw"] == (raw(shard.read_bytes()) if raw else None)
    assert record["raw_note"] == note


def test_a_long_stretch_is_cut(shard: Path) -> None:
    data = shard.read_bytes() + b"x" * (3 << 20)
    shard.write_bytes(data)
    record = one(loss(None, None, None, build_source_ref("x.tar", None, 1024), kind="damaged_tar"), shard)
    assert record["raw"] == data[1024 : 1024 + quarantine.MAX_DAMAGED_RANGE_BYTES]


def test_a_stretch_without_a_locator_is_of_the_only_file(shard: Path) -> None:
    record = one(loss(None, None, None, kind="damaged_tar"), shard)
    assert (record["source_uri"], record["raw"]) == ("x.tar", shard.read_bytes())


@pytest.mark.parametrize("change", ["replaced", "shifted", "shorter", "gone", "folder"])
def test_other_bytes_are_never_taken_for_the_items(shard: Path, change: str) -> None:
    given = loss("odd", 0, "image", ref_of(shard, "odd.png"))
    data = shard.read_bytes()
    shard.unlink()
    match change:
        case "replaced":
            make_tar(shard, [(name, BLOB * 2) for name, _ in MEMBERS])
        case "shifted":
            make_tar(shard, [("more.json", {}), *MEMBERS])
        case "shorter":
            shard.write_bytes(data[:2048])
        case "folder":
            shard.mkdir()
    record = one(given, shard)
    assert record["raw"] is None
    told = {
        "replaced": "the source has changed: no member of this size lies there any more",
        "shifted": "the source has changed: no member of this size lies there any more",
        "shorter": "x.tar: range 2048+1792 is outside the file of 2048 bytes",
        "gone": "cannot be read: no such file",
        "folder": "cannot be read: not a regular file",
    }[change]
    assert record["raw_note"] == told


@pytest.mark.parametrize("where", ["local", "remote"])
@pytest.mark.parametrize(("damage", "known"), [("cut", [BAD, BLOB, None]), ("corrupt", [None, None, None])])
def test_of_a_damaged_gzip_file_what_can_be_unpacked_is_taken(
    shard: Path, where: str, damage: str, known: list[bytes | None]
) -> None:
    packed = bytearray(gzip.compress(shard.read_bytes(), 0))
    if damage == "cut":
        del packed[packed.index(BLOB) + len(BLOB) + 5 :]
    else:
        packed[-6] ^= 1
    root = str(shard.parent) if where == "local" else f"memory://quarantine-{uuid.uuid4().hex}"
    name = "x.tar.gz" if where == "local" else f"{root}/x.tar.gz"
    with fsspec.open(f"{root}/x.tar.gz", "wb") as file:
        file.write(packed)
    losses = [
        loss(member, 0, "image", ref_of(shard, member, name)) for member in ("bad.json", "odd.png", LONG)
    ]
    found = records(losses, [f"{root}/x.tar.gz"], [root])
    assert [r["raw"] for r in found] == known
    assert {r["raw_note"] for r in found if r["raw"] is None} == {
        "the gzip file is damaged before these bytes"
    }


@pytest.mark.parametrize("suffix", ["tar", "tar.gz"])
def test_what_the_reader_sets_aside(tmp_path: Path, suffix: str) -> None:
    sound = {"texts": ["x"]}
    members = [
        ("a.json", sound),
        ("bad.json", BAD),
        ("b.json", sound),
        ("b2.json", {**sound, "sample_id": "b"}),
        ("c.json", sound),
    ]
    data = make_tar(tmp_path / "raw" / "whole.tar", members).read_bytes()
    cut = data.rindex(b"c.json") + 100  # in the middle of a header
    shard = tmp_path / "raw" / f"x.{suffix}"
    data = data[:cut]
    shard.write_bytes(gzip.compress(data) if suffix == "tar.gz" else data)
    root = str(tmp_path / "raw")
    stream = InterleavedWebdatasetReader(str(shard), quarantine_errors=True, relative_to=root).open(
        Partition("p", (str(shard),))
    )
    assert [i for batch in stream for i in batch.data["sample_id"].unique().to_pylist()] == ["a", "b"]
    found = records(stream.losses, [str(shard)], [root])
    assert [(r["kind"], r["sample_id"], r["raw"]) for r in found] == [
        ("bad_json", "bad", BAD),
        ("duplicate_id", "b", json.dumps(members[3][1]).encode()),
        ("truncated_tar", None, data[-100:]),
    ]
    assert str(tmp_path) not in str([{**r, "raw": None} for r in found])


@pytest.mark.parametrize(
    "path",
    [
        "../key.tar",
        "raw/../key.tar",
        "key.tar",
        "/etc/hostname",
        "file:///etc/hostname",
        "memory://key",
        "",
        "link.tar",
    ],
)
def test_only_files_of_the_shard_are_read(shard: Path, path: str) -> None:
    secret = make_tar(shard.parent / "key.tar", [("key", b"secret")])
    make_tar(shard.parents[1] / "key.tar", [("key", b"secret")])
    (shard.parent / "link.tar").symlink_to(secret)
    for ref in (ref_of(secret, "key", path), ref_of(secret, "key", str(secret))):
        given = loss("s", 0, "image", ref)
        (record,) = records(
            [given],
            [str(shard), str(shard.with_name("other.tar"))],
            [str(shard.parent), str(shard.parents[1])],
        )
        assert record["raw"] is None
        assert record["raw_note"] == "not in a file of this shard"


def test_names_of_a_file(shard: Path) -> None:
    other = make_tar(shard.parent / "sub" / "y.tar", [("odd.png", BLOB * 2)])
    files, roots = [str(shard), str(other)], [f"{shard.parent}/", str(shard.parents[1])]
    for name, path in (
        ("x.tar", shard),
        ("raw/x.tar", shard),
        (str(shard), shard),
        ("sub/y.tar", other),
        (str(other), other),
    ):
        (record,) = records([loss("s", 0, "image", ref_of(path, "odd.png", name))], files, roots)
        assert (record["raw"], record["source_uri"]) == (BLOB if path == shard else BLOB * 2, name)
    mixed = [
        loss("s", 0, "image", ref_of(path, "odd.png", str(path))) for path in (other, shard, other, shard)
    ]
    assert [len(r["raw"]) // len(BLOB) for r in records(mixed, files, roots)] == [2, 1, 2, 1]


def test_what_is_too_large_is_left_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "MAX_PLACE_BYTES", 1000)
    monkeypatch.setattr(quarantine, "MAX_SHARD_BYTES", 2500)
    monkeypatch.setattr(quarantine, "BATCH_BYTES", 1500)
    sizes = [1000, 1001, 900, 601, 600, 0, 1]
    shard = make_tar(tmp_path / "x.tar", [(f"{n}.png", bytes([n]) * size) for n, size in enumerate(sizes)])
    found = records(
        [loss(str(n), 0, "image", ref_of(shard, f"{n}.png")) for n in range(7)], [str(shard)], [str(tmp_path)]
    )
    assert [None if r["raw"] is None else len(r["raw"]) for r in found] == [
        1000,
        None,
        900,
        None,
        600,
        0,
        None,
    ]
    assert [r["raw"][:1] for r in found if r["raw"]] == [b"\0", b"\2", b"\4"]
    assert found[1]["raw_note"] == "1001 bytes are more than the 1000 that are kept of one item"
    assert found[3]["raw_note"] == "601 bytes are more than are left of the 2500 that are kept of a shard"


def test_frames_of_one_file_hold_its_bytes_once(shard: Path) -> None:
    found = records(
        [loss("z", p, "image", ref_of(shard, LONG, frame=p)) for p in (2, 4)],
        [str(shard)],
        [str(shard.parent)],
    )
    assert [r["raw"] for r in found] == [BLOB * 3, None]
    assert found[1]["raw_note"] == "a frame of the same file as position 2: see there"
    nowhere = [
        loss("lost", p, "image", build_source_ref("x.tar", "gone.tiff", frame_index=p)) for p in (0, 1)
    ]
    document = loss("lost", ref=ref_of(shard, "lost.json"), is_cause=False)
    assert [r["raw"] for r in records([document, *nowhere], [str(shard)], [str(shard.parent)])] == [
        LOST_JSON
    ] * 2


@pytest.mark.parametrize("root", ["local", "memory"])
def test_records_are_published_and_close(shard: Path, root: str) -> None:
    uri = (
        f"{shard.parents[1]}/quarantine/p.parquet"
        if root == "local"
        else f"memory://quarantine-{uuid.uuid4().hex}/p.parquet"
    )
    assert record_names(uri) is None
    losses = [
        loss("bad", ref=ref_of(shard, "bad.json")),
        loss("odd", 0, "image", ref_of(shard, "odd.png")),
        loss(None, None, None),
    ]
    table = quarantine_table(items_table("a", "p", losses), [str(shard)], [str(shard.parent)])
    written = publish_quarantine(uri, table)
    assert {"p.parquet": written} == digest_files(uri.rpartition("/")[0], [uri])
    with fsspec.open(uri, "rb") as file:
        assert pq.read_table(file).equals(table)
    names = record_names(uri)
    assert names == {
        ("bad", -1, "metadata", "x.tar", "bad.json"),
        ("odd", 0, "image", "x.tar", "odd.png"),
        (None, None, None, "x.tar", None),
    }
    publish_quarantine(uri, table.slice(0, 1))
    assert record_names(uri) < names
    assert publish_quarantine(uri, QUARANTINE_SCHEMA.empty_table()) is None
    assert record_names(uri) is None
    assert publish_quarantine(uri, QUARANTINE_SCHEMA.empty_table()) is None


def test_row_groups_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "BATCH_BYTES", 2 * len(BLOB))
    shard = make_tar(tmp_path / "x.tar", [(f"{n}.png", BLOB) for n in range(5)])
    losses = [loss(str(n), 0, "image", ref_of(shard, f"{n}.png")) for n in range(5)]
    table = quarantine_table(items_table("a", "p", losses), [str(shard)], [str(tmp_path)])
    publish_quarantine(str(tmp_path / "q.parquet"), table)
    metadata = pq.read_metadata(tmp_path / "q.parquet")
    assert [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)] == [2, 2, 1]
    assert pq.read_table(tmp_path / "q.parquet")["raw"].to_pylist() == [BLOB] * 5


def test_a_failed_publication_leaves_the_records_there_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = tmp_path / "p.parquet"
    table = pa.Table.from_pylist(
        [{"partition": "p", "kind": "bad_json", "message": "why"}], schema=QUARANTINE_SCHEMA
    )
    publish_quarantine(str(uri), table)
    before = uri.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(OSError, match="No space left"):
        publish_quarantine(str(uri), pa.concat_tables([table, table]))
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("p.parquet", before)]


def of_row(member: str | None, sample_id: str = "a", position: int = -1, **values: Any) -> Loss:
    return loss(
        sample_id,
        position,
        "metadata" if position < 0 else "image",
        build_source_ref("f.parquet", member),
        **values,
    )


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """Four rows in two row groups; text of the third is not UTF-8."""
    texts = pa.array([b"x", b"y", b"\xff", b"z"], pa.binary()).view(pa.string())
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    images = pa.array([[{"bytes": BLOB, "path": "p"}]] * 4, pa.list_(image))
    table = pa.table(
        {"url": texts, "images": images, "n": pa.array([1, 2, 3, 4]), "blob": pa.array([BLOB] * 4)}
    )
    pq.write_table(table, tmp_path / "f.parquet", row_group_size=2)
    return tmp_path / "f.parquet"


def test_a_row_of_parquet_is_told_by_its_values(documents: Path) -> None:
    losses = [
        of_row("row 1"),
        of_row("row 2, images[0]", "b", 0),
        of_row("row 2, images[1]", "b", 1),
        of_row("row 9"),
        of_row("no row"),
    ]
    found = records(losses, [str(documents)], [str(documents.parent)])
    place = ("f.parquet", None, None)
    assert [(r["source_uri"], r["byte_offset"], r["byte_size"]) for r in found] == [place] * 5
    assert json.loads(found[0]["raw"]) == {"url": "y", "images": [{"path": "p"}], "n": 2}
    assert json.loads(found[1]["raw"]) == {"url": "/w==", "images": [{"path": "p"}], "n": 3}, (
        "what is no text is in base64"
    )
    assert [r["raw"] for r in found[2:]] == [None, None, None]
    assert [r["raw_note"] for r in found] == [
        "the values of its row, but for bytes",
        "the values of its row, but for bytes",
        "the same row as of position 0: see there",
        "the source has changed: it has no such row any more",
        "it has no bytes of its own, and the document of its sample is not in quarantine",
    ]


def test_rows_of_parquet_within_bounds(documents: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(records([of_row("row 0")], [str(documents)], [str(documents.parent)])[0]["raw"])
    monkeypatch.setattr(quarantine, "MAX_SHARD_BYTES", size + 1)
    found = records([of_row("row 0"), of_row("row 1", "b")], [str(documents)], [str(documents.parent)])
    assert found[0]["raw"] is not None
    assert (
        found[1]["raw_note"]
        == f"{size} bytes are more than are left of the {size + 1} that are kept of a shard"
    )
    monkeypatch.setattr(quarantine, "MAX_PLACE_BYTES", size - 1)
    assert (
        one(of_row("row 0"), documents)["raw_note"]
        == f"{size} bytes are more than the {size - 1} that are kept of one item"
    )


def test_a_parquet_file_that_cannot_be_read_any_more(documents: Path) -> None:
    for content, words in (
        (b"junk", "cannot be read: f.parquet: not a readable Parquet file: "),
        (None, "cannot be read: no such file"),
    ):
        if content is None:
            documents.unlink()
        else:
            documents.write_bytes(content)
        record = one(of_row("row 0"), documents)
        assert record["raw"] is None and record["raw_note"].startswith(words)
        assert str(documents.parent) not in record["raw_note"]


def test_a_row_of_another_file_is_not_read(documents: Path, shard: Path) -> None:
    assert one(of_row("row 0"), shard)["raw"] is None
