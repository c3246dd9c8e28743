"""Folders of images, and zips, as raw shards: imagefolders, images with texts of their name, hostile ones."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mm_assets.formats.raw_shards import RawLocations, RawReader, location_of
from mm_assets.formats.reader import InterleavedReader
from mm_assets.formats.registry import detect_format, reader_for
from mm_assets.formats.tar import TarDamage
from mm_assets.formats.webdataset import folders
from mm_assets.interleaved import materialize
from mm_assets.storage.files import open_binary
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.raw_tars import make_tar

JPG, JPG2, PNG = picture(1)[1], picture(14)[1], picture(0)[1]
Files = Mapping[str, Any]

IMAGEFOLDER = {
    "train/metadata.jsonl": [
        {"file_name": "cat/1.jpg", "text": "a cat", "label": 3},
        {"file_name": "none.jpg", "text": "nothing", "label": 4},
        {"left_file_name": "2.jpg", "right_file_name": "cat/1.jpg", "label": None},
        {"file_names": ["2.jpg", "../test/4.png"], "label": 5},
    ],
    "train/cat/1.jpg": JPG,
    "train/2.jpg": JPG2,
    "train/unnamed.jpg": JPG2,
    "train/.DS_Store": b"x",
    "train/Thumbs.db": b"x",
    "test/metadata.csv": 'file_name,additional\n3.jpg,"one\n\ntwo"\n4.png,three\n5.png\n',
    "test/3.jpg": JPG,
    "test/4.png": PNG,
}
LOOSE = {
    "a.jpg": JPG,
    "a.txt": "text of a",
    "b.png": PNG,
    "b.json": {"caption": "caption of b", "stars": 5},
    "c.jpg": JPG2,
    "c.caption": "text of c",
    "c.json": {"stars": 4},
    "alone.jpg": JPG2,
    "README": "none",
    "more/a.jpg": JPG2,
    "__MACOSX/._a.jpg": b"x",
}


def as_bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, list):
        return "".join(json.dumps(line) + "\n" for line in value).encode()
    return (value if isinstance(value, str) else json.dumps(value)).encode()


def folder(path: Path, files: Files) -> Path:
    for name, value in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(as_bytes(value))
    return path


def zipped(path: Path, files: Files, method: int = zipfile.ZIP_DEFLATED) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", method) as packed:
        for name, value in files.items():
            packed.writestr(name, as_bytes(value))
    return path


def reader_of(source: object, **arguments: Any) -> InterleavedReader:
    url = location_of(str(source))
    root = os.path.dirname(url) if url.endswith(".zip") else url
    return reader_for(detect_format(url), url, quarantine_errors=True, relative_to=root, **arguments)


def samples(reader: InterleavedReader) -> tuple[dict[str, list[Any]], list[Any]]:
    """Return texts, images and messages of each sample, and the losses."""
    found: dict[str, list[Any]] = {}
    losses: list[Any] = []
    for partition in reader.partitions():
        stream = reader.open(partition)
        for batch in stream:
            for row in batch.data.to_pylist():
                items = found.setdefault(row["sample_id"], [])
                if row["modality"] != "metadata":
                    items.append(row["binary_content"] or row["materialize_error"] or row["text_content"])
        losses += stream.losses
        losses += [loss for notes in stream.notes.values() for loss in notes.get("unreferenced_losses", [])]
    return found, losses


def test_an_imagefolder(tmp_path: Path) -> None:
    reader = reader_of(folder(tmp_path / "set", IMAGEFOLDER))
    assert [partition.name for partition in reader.partitions()] == ["test", "train"]
    found, losses = samples(reader)
    assert found == {
        "test/2": [JPG],
        "test/5": [PNG],
        "train/1": ["a cat", JPG],
        "train/2": ["nothing", "missing member 'none.jpg'"],
        "train/3": [JPG2, JPG],
        "train/4": [JPG2, "missing member '../test/4.png'"],
    }
    assert [(loss.kind, loss.outcome) for loss in losses] == [
        ("bad_layout", "quarantined"),
        ("unreferenced_member", "unreferenced"),
    ]
    assert losses[0].reason == "test/: metadata.csv: line 6: 1 values in 2 columns"
    assert json.loads(losses[1].source_ref)["path"] == "train/unnamed.jpg"


def test_urls_are_not_names_in_the_folder(tmp_path: Path) -> None:
    """They are told as such, and found in the places that a user names."""
    tokens = ["http://x.org/a/../1.jpg", "file:///etc/1.jpg", "1.jpg"]
    files = {"metadata.jsonl": [{"file_names": tokens}], "1.jpg": JPG}
    source = folder(tmp_path / "set" / "deep", files).parent
    (found,) = samples(reader_of(source))[0].values()
    advice = "a URL, and nothing is fetched: download the images first, see docs/raw_shards.md"
    assert found == [*(f"dangling reference {token!r}: {advice}" for token in tokens[:2]), JPG]
    tars = make_tar(
        tmp_path / "t.tar",
        [("0.jpg", JPG2), ("0.json", {"key": "0", "url": tokens[0], "status": "success"})],
    )
    (found,) = samples(reader_of(source, images_from=str(tars)))[0].values()
    assert found[::2] == [JPG2, JPG]


def test_locators_name_the_files(tmp_path: Path) -> None:
    """And lead to their bytes; those of a line, and of a row, too."""
    reader = reader_of(folder(tmp_path / "set", IMAGEFOLDER))
    rows = [row for batch in reader for row in batch.data.to_pylist()]
    refs = [json.loads(row["source_ref"]) for row in rows if row["sample_id"] in ("train/3", "test/2")]
    assert [(ref["path"], ref["member"]) for ref in refs] == [
        ("test/metadata.csv", "line 2"),
        ("test/3.jpg", None),
        ("train/metadata.jsonl", "line 3"),
        ("train/2.jpg", None),
        ("train/cat/1.jpg", None),
    ]
    url = location_of(str(tmp_path / "set"))
    texts = []
    for ref in refs:
        with open_binary(f"{url}/{ref['path']}") as file:
            file.seek(ref["byte_offset"])
            texts.append(file.read(ref["byte_size"]))
    assert texts[0] == b'3.jpg,"one\n\ntwo"'
    assert json.loads(texts[2]) == IMAGEFOLDER["train/metadata.jsonl"][2]
    assert [texts[1], *texts[3:]] == [JPG, JPG2, JPG]
    metadata = next(row for row in rows if row["sample_id"] == "test/2")
    assert (metadata["additional"], metadata["file_name"]) == ("one\n\ntwo", "3.jpg")
    reader = reader_of(tmp_path / "set", materialize=False)
    for batch in reader:
        table = materialize(batch.data, roots=[url])
        assert table.column("materialize_error").null_count >= table.num_rows - 2


def test_images_with_texts_of_their_name(tmp_path: Path) -> None:
    found, losses = samples(reader_of(f"folder={folder(tmp_path / 'set', LOOSE)}"))
    assert found == {
        "set/a": ["text of a", JPG],
        "set/alone": [JPG2],
        "set/b": ["caption of b", PNG],
        "set/c": ["text of c", JPG2],
        "more/a": [JPG2],
    }
    assert [json.loads(loss.source_ref)["path"] for loss in losses] == ["set/README"]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_zips_of_all_these(tmp_path: Path, method: int) -> None:
    zips = tmp_path / "zips"
    zipped(zips / "images.zip", IMAGEFOLDER, method)
    zipped(zips / "loose.zip", LOOSE, method)
    document = {"texts": ["x", None], "images": [None, "img/1.jpg"]}
    zipped(zips / "json.zip", {"d.json": document, "img/1.jpg": JPG}, method)
    zipped(zips / "lines.zip", {"data/l.jsonl": [document, "bad"], "img/1.jpg": JPG2}, method)
    found, losses = samples(reader_of(zips))
    assert found == {
        "d": ["x", JPG],
        "images/test/metadata/2": [JPG],
        "images/test/metadata/5": [PNG],
        "images/train/metadata/1": ["a cat", JPG],
        "images/train/metadata/2": ["nothing", "missing member 'train/none.jpg'"],
        "images/train/metadata/3": [JPG2, JPG],
        "images/train/metadata/4": [JPG2, PNG],
        "lines/1": ["x", JPG2],
        "loose/a": ["text of a", JPG],
        "loose/alone": [JPG2],
        "loose/b": ["caption of b", PNG],
        "loose/c": ["text of c", JPG2],
        "loose/more/a": [JPG2],
    }
    (bad,) = [loss for loss in losses if loss.kind == "not_an_object"]
    ref = json.loads(bad.source_ref)
    assert (ref["path"], ref["member"]) == ("lines.zip", "data/l.jsonl: line 2")


def packed(path: Path, files: Files) -> Path:
    """A zip whose files are there, but for what the name of one says is wrong with it."""
    zipped(path, files, zipfile.ZIP_DEFLATED)
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    for entry in entries:
        directory = data.rfind(entry.filename.encode()) - 46
        if "encrypted" in entry.filename:
            for flags in (entry.header_offset + 6, directory + 8):
                data[flags] |= 1
        elif "odd" in entry.filename:
            for method in (entry.header_offset + 8, directory + 10):
                data[method] = 97
        elif "damaged" in entry.filename:
            at = entry.header_offset + 30 + len(entry.filename) + entry.compress_size // 2
            data[at : at + 4] = bytes(byte ^ 255 for byte in data[at : at + 4])
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("encrypted.jpg", "encrypted.jpg is encrypted"),
        ("odd.jpg", "odd.jpg is compressed by method 97, which is not read"),
        ("damaged.jpg", "damaged.jpg is damaged: "),
    ],
)
def test_a_file_that_cannot_be_unpacked_is_one_loss(tmp_path: Path, name: str, reason: str) -> None:
    path = packed(tmp_path / "x.zip", {"a.jpg": JPG, name: JPG2, "z.jpg": JPG})
    found, losses = samples(reader_of(path))
    assert found == {"x/a": [JPG], "x/z": [JPG]}
    (loss,) = losses
    assert loss.kind == "damaged_tar"
    assert loss.reason.startswith(f"x.zip: {reason}")
    with pytest.raises(TarDamage, match=r"x\.zip: "):
        list(RawReader([str(path)]))


def test_hostile_zips(tmp_path: Path) -> None:
    """Names lead nowhere, a bomb is not unpacked, a cut zip has one error."""
    names = {"../../out.jpg": JPG, "/abs.jpg": JPG, "ok.jpg": JPG}
    found, _ = samples(reader_of(zipped(tmp_path / "deep" / "names.zip", names)))
    assert sorted(found.values()) == [[JPG]] * 3
    assert [path.name for path in tmp_path.rglob("*.jpg")] == []
    bomb = zipped(tmp_path / "bomb.zip", {f"{n}.jpg": bytes(10 << 20) for n in range(12)})
    found, losses = samples(reader_of(bomb))
    assert (found, len(losses)) == ({}, 1)
    assert "bomb.zip: unpacks to 125829120 bytes, more than" in losses[0].reason
    cut = zipped(tmp_path / "cut.zip", LOOSE)
    cut.write_bytes(cut.read_bytes()[:-100])
    found, losses = samples(reader_of(cut))
    assert found == {}
    assert [loss.reason for loss in losses] == ["cut.zip: no whole zip: File is not a zip file"]
    twice = tmp_path / "twice.zip"
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(twice, "w") as archive:
        archive.writestr("m/metadata.jsonl", as_bytes([{"file_name": "a.jpg"}]))
        archive.writestr("m/a.jpg", JPG)
        archive.writestr("m/a.jpg", JPG2)
    found, _ = samples(reader_of(twice))
    assert found["twice/1"][0].startswith("ambiguous")


def test_links_out_of_a_folder_are_not_read(tmp_path: Path) -> None:
    photos = folder(tmp_path / "photos", {"a.jpg": JPG, "sub/b.jpg": JPG2})
    (tmp_path / "secret.txt").write_text("secret")
    (photos / "a.txt").symlink_to(tmp_path / "secret.txt")
    (photos / "out").symlink_to(folder(tmp_path / "other", {"c.jpg": JPG}))
    (photos / "inside.jpg").symlink_to(photos / "sub" / "b.jpg")
    os.mkfifo(photos / "pipe.jpg")
    with pytest.warns(UserWarning, match=r"not read: a link out of"):
        reader = reader_of(f"folder={photos}")
    found, _ = samples(reader)
    assert found == {"photos/a": [JPG], "photos/inside": [JPG2], "sub/b": [JPG2]}


def test_what_is_taken_for_a_folder_of_images(tmp_path: Path) -> None:
    photos = folder(tmp_path / "photos", {"a/1.jpg": JPG, "a/1.txt": "t", "b/2.jpg": JPG2})
    found = RawLocations(str(photos)).shards()
    assert (list(found), found.warnings) == (["a", "b"], ())
    assert list(RawLocations(f"folder={photos}").shards()) == ["a", "b"]
    before = {key: shard.version for key, shard in found.items()}
    (photos / "a" / "1.txt").write_text("u")
    after = {key: shard.version for key, shard in RawLocations(str(photos)).shards().items()}
    assert (after["a"] != before["a"], after["b"] == before["b"]) == (True, True)
    zipped(photos / "x.zip", {"c.jpg": JPG})
    assert list(RawLocations(str(photos)).shards()) == ["x"]
    make_tar(photos / "y.tar", [])
    found = RawLocations(str(photos)).shards()
    assert list(found) == ["y"]
    assert found.warnings == (
        f"{photos}: 1 zip file beside tars passed over, such as x.zip; name *.zip to read them",
    )
    named = RawLocations(f"folder={photos}").shards()
    assert list(named) == ["a", "b"]
    assert named.warnings == (f"{photos}/x.zip: not read among images; name raw shards without folder=",)
    with pytest.raises(ValueError, match="folders of images and other locations cannot be mixed"):
        RawLocations(f"folder={photos} {photos}/y.tar")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no images"):
        RawLocations(f"folder={tmp_path}/empty").shards()


@pytest.mark.parametrize(
    ("bad", "text", "reason"),
    [
        (f"1.png,{'x' * 140_000}", "x" * 140_000, None),
        ('1.png,"5" tall"', '5 tall"', None),
        ('1.png,"one\n\nline"', "one\n\nline", None),
        ('1.png,"unclosed', None, "no row of CSV: a quotation mark has no end"),
        ("1.png,carriage\rreturn", None, "no row of CSV: new-line character seen in unquoted field"),
        (f"1.png,{'x' * (17 << 20)}", None, "no row of CSV: field larger than field limit"),
    ],
)
def test_a_bad_row_of_csv_is_lost_alone(
    tmp_path: Path, bad: str, text: str | None, reason: str | None
) -> None:
    rows = ["file_name,text", "0.png,a", bad, '2.png,"c, d"', "3.png,e"]
    files = {"metadata.csv": "\n".join(rows) + "\n", **{f"{number}.png": PNG for number in range(4)}}
    found, losses = samples(reader_of(folder(tmp_path / "set", files)))
    expected = {"a": [PNG], "c, d": [PNG], "e": [PNG], **({} if text is None else {text: [PNG]})}
    assert {texts[0]: texts[1:] for texts in found.values()} == expected
    reasons = [loss.reason for loss in losses if ": line " in loss.reason]
    assert len(reasons) == (0 if reason is None else 1)
    assert all(f"metadata.csv: line 3: {reason}" in each for each in reasons)


def test_a_csv_of_endless_values_is_read_in_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line begins a value that has no end: what is read again has a limit."""
    monkeypatch.setattr(folders, "_MAX_READ_AGAIN", 10_000)
    count = 2_000
    files = {"metadata.csv": "file_name,text\n" + 'x",y,"z\n' * count + "0.png,last\n", "0.png": PNG}
    found, losses = samples(reader_of(folder(tmp_path / "set", files)))
    assert list(found.values()) == [["last", PNG]]
    assert len(losses) == count
