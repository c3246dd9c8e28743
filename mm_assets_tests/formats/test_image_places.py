"""Images that documents only name: what is found in the places of MM_IMAGES_FROM, and what is not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets.formats import image_places as places
from mm_assets.formats.image_places import ImagePlace, ImagePlaces
from mm_assets.formats.raw_shards import RawReader
from mm_assets.formats.tar.spool import KeptCopies, keep_copies
from mm_assets.interleaved import materialize
from mm_assets.model.errors import Fault
from mm_assets.storage.files import filesystem
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.raw_tars import make_tar

JPG, JPG2 = picture(1)[1], picture(14)[1]
URL = "http://example.org/cat.jpg"


def note(key: str, url: str, status: str = "success", **others: Any) -> tuple[str, dict[str, Any]]:
    return f"{key}.json", {"key": key, "url": url, "status": status, "error_message": None, **others}


@pytest.fixture
def downloads(tmp_path: Path) -> Path:
    """Results of img2dataset: two tars, and the Parquet file that says what failed."""
    folder = tmp_path / "downloads"
    make_tar(
        folder / "00000.tar",
        [
            ("000000000.jpg", JPG),
            note("000000000", URL, sha256="1"),
            ("000000001.jpg", JPG2),
            note("000000001", "http://example.org/twice", sha256="1"),
        ],
    )
    make_tar(
        folder / "00001.tar",
        [
            ("000010000.jpg", JPG),
            note("000010000", "http://example.org/twice", sha256="2"),
            ("000010001.jpg", JPG),
            note("000010001", URL, sha256="1"),
            note("000010002", "http://example.org/gone", "failed_to_download", error_message="timed out"),
        ],
    )
    failures = {
        "url": [URL, "http://example.org/none"],
        "key": ["000000000", "000000009"],
        "status": ["success", "failed_to_download"],
        "error_message": [None, "HTTP Error 404: Not Found"],
    }
    pq.write_table(pa.table(failures), folder / "00000.parquet")
    return folder


def found(text: object) -> ImagePlaces:
    made = places.image_places(str(text))
    assert made is not None
    return made


def data(place: ImagePlace | Fault) -> bytes | str:
    if isinstance(place, Fault):
        return place.message
    with open(place.uri, "rb") as file:
        file.seek(place.offset)
        return file.read(place.size)


def read(uri: Path, text: str, **arguments: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for batch in RawReader([str(uri)], images_from=text, **arguments):
        rows += [row for row in batch.data.to_pylist() if row["modality"] == "image"]
    return rows


def test_results_of_img2dataset_are_found_by_url_and_key(downloads: Path) -> None:
    made = found(downloads)
    assert data(made.find(URL)) == JPG  # twice, with the same digest
    assert data(made.find("000000001")) == JPG2
    assert data(made.find("000000001.jpg")) == JPG2
    assert data(made.find("http://example.org/none")) == (
        "the download failed: HTTP Error 404: Not Found (as img2dataset notes of 'http://example.org/none')"
    )
    assert str(data(made.find("http://example.org/gone"))).startswith("the download failed: timed out")
    assert data(made.find("http://example.org/twice")) == (
        "ambiguous reference 'http://example.org/twice': 2 images in 2 files of MM_IMAGES_FROM: "
        "000000001.jpg, 000010000.jpg"
    )
    nowhere = "dangling reference 'http://example.org/': no such URL in MM_IMAGES_FROM"
    assert data(made.find("http://example.org/")) == nowhere


def test_what_a_tar_states_of_its_bytes_is_not_believed(tmp_path: Path) -> None:
    """Other bytes are another image, whatever their sha256; the same bytes are the same one."""
    shards = {"a": (JPG, "1"), "b": (JPG, "2"), "c": (JPG[:-1] + b"x", "1"), "d": (JPG2, "1")}
    for name, (content, sha256) in shards.items():
        make_tar(tmp_path / f"{name}.tar", [(f"{name}.jpg", content), note(name, URL, sha256=sha256)])
    assert data(found(f"{tmp_path}/a.tar {tmp_path}/b.tar").find(URL)) == JPG
    for other in "cd":
        fault = data(found(f"{tmp_path}/a.tar {tmp_path}/{other}.tar").find(URL))
        assert str(fault).startswith(f"ambiguous reference '{URL}': 2 images in 2 files"), other


def test_names_in_tars(tmp_path: Path) -> None:
    make_tar(tmp_path / "a.tar", [("x/1.jpg", JPG), ("x/2.jpg", JPG), ("y/2.jpg", JPG2), ("3.jpg", JPG)])
    make_tar(tmp_path / "b.tar", [("3.jpg", JPG2), ("z/1.png", JPG2), ("1.png", JPG)])
    made = found(f"{tmp_path}/*.tar")
    assert data(made.find("x/1.jpg")) == data(made.find("./x/1.jpg")) == data(made.find("1.jpg")) == JPG
    assert data(made.find("y/2.jpg")) == JPG2
    assert data(made.find("1.png")) == JPG  # the whole name goes before the last part of one
    assert str(data(made.find("2.jpg"))).startswith("ambiguous reference '2.jpg': 2 images of MM_IMAGES_FROM")
    assert str(data(made.find("3.jpg"))).startswith("ambiguous reference '3.jpg': 2 images in 2 files of")
    for name in ("w/1.jpg", "1.JPG", "x", ""):
        assert str(data(made.find(name))).startswith("dangling reference"), name


def test_data_lead_to_no_file_outside(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.jpg").write_bytes(JPG)
    (tmp_path / "secret.jpg").write_bytes(JPG)
    (folder / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    (folder / "inside.jpg").symlink_to(folder / "deep" / "a.jpg")
    (folder / "out").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe.jpg")
    made = found(folder)
    assert data(made.find("deep/a.jpg")) == data(made.find("inside.jpg")) == JPG
    tokens = ["../secret.jpg", "deep/../../secret.jpg", str(tmp_path / "secret.jpg"), "link.jpg"]
    tokens += [
        "out/secret.jpg",
        "out/images/../secret.jpg",
        "pipe.jpg",
        "deep",
        "deep/a.jpg/",
        f"{folder}/deep/a.jpg/",
        "a\0b",
        f"file://{tmp_path}/secret.jpg",
    ]
    for token in tokens:
        assert str(data(made.find(token))).startswith("dangling reference"), token


def test_absolute_paths_lead_only_below_folders_that_are_named(tmp_path: Path) -> None:
    """As Qwen-VL has them: ``file://`` and a path."""
    folder = tmp_path / "images"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a b.jpg").write_bytes(JPG)
    (tmp_path / "secret.jpg").write_bytes(JPG)
    (folder / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    (tmp_path / "images2").mkdir()
    (tmp_path / "images2" / "a.jpg").write_bytes(JPG2)
    (tmp_path / "named").symlink_to(folder)
    outside = "such a path is followed only below a folder that MM_IMAGES_FROM names"
    for made in (found(folder), found(tmp_path / "named"), found(f"{folder} {folder / 'deep'}")):
        name = f"{folder}/deep/a b.jpg"
        for token in (name, f"file://{name}", f"file://localhost{folder}//deep/a%20b.jpg"):
            assert data(made.find(token)) == JPG, token
        for token in (f"{tmp_path}/secret.jpg", f"file://{tmp_path}/images2/a.jpg", "file:///etc/passwd"):
            assert data(made.find(token)) == f"dangling reference {token!r:.200}: {outside}"
        for token in (f"{folder}/link.jpg", f"{folder}/deep", f"{folder}/none.jpg"):
            assert str(data(made.find(token))).endswith(": no such image in MM_IMAGES_FROM"), token
        for token in (f"{folder}/../secret.jpg", f"file://{folder}/%2e%2e/secret.jpg", f"{folder}/a%00.jpg"):
            assert str(data(made.find(token))).startswith("dangling reference"), token
    path = tmp_path / "lines.jsonl"
    path.write_text(json.dumps({"images": [f"file://{folder}/deep/a b.jpg", "/etc/passwd"]}) + "\n")
    rows = read(path, str(folder))
    assert [row["binary_content"] for row in rows] == [JPG, None]
    assert rows[1]["materialize_error"] == f"dangling reference '/etc/passwd': {outside}"


def test_lines_name_images_of_a_media_tar(tmp_path: Path) -> None:
    """As Nemotron has them: the tar lies elsewhere, and has another name."""
    make_tar(tmp_path / "media" / "media_0.tar", [("img/a.jpg", JPG), ("img/b.jpg", JPG2)])
    (tmp_path / "raw").mkdir()
    documents = [{"texts": ["x", None, None], "images": [None, "img/b.jpg", "img/none.jpg"]}]
    path = tmp_path / "raw" / "lines.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in documents))
    rows = read(path, str(tmp_path / "media"), relative_to=str(tmp_path))
    assert [row["binary_content"] for row in rows] == [JPG2, None]
    assert (
        rows[1]["materialize_error"] == "dangling reference 'img/none.jpg': no such image in MM_IMAGES_FROM"
    )
    assert json.loads(rows[0]["_source"]) == {"token": "img/b.jpg"}
    assert rows[0]["content_type"] == "image/jpeg"
    ref = json.loads(rows[0]["source_ref"])
    assert (ref["path"], ref["member"]) == ("media/media_0.tar", "img/b.jpg")
    hint = ": no tar is beside the lines; MM_IMAGES_FROM tells where their images lie"
    assert read(path, "")[0]["materialize_error"] == f"missing member 'img/b.jpg'{hint}"
    make_tar(path.with_suffix(".tar"), [("img/a.jpg", JPG)])
    assert read(path, "")[0]["materialize_error"] == "missing member 'img/b.jpg'"
    path.with_suffix(".tar").unlink()
    left = read(path, str(tmp_path / "media"), materialize=False)
    assert [row["binary_content"] for row in left] == [None, None]
    table = pa.Table.from_pylist(left).drop_columns("binary_content")
    table = table.append_column("binary_content", pa.array([None, None], pa.large_binary()))
    found = materialize(table, images_from=str(tmp_path / "media"))
    assert found.column("binary_content").to_pylist() == [JPG2, None]
    assert materialize(table, roots=[]).column("materialize_error")[0].as_py() == (
        "images-from://0/media_0.tar: MM_IMAGES_FROM (images_from=) names no such place"
    )


@pytest.mark.parametrize(
    ("locations", "paths"),
    [
        (["images"], ["0/x.jpg", "0/a.tar"]),
        (["images/{b,a}.tar", "images"], ["0/x.jpg", "0/a.tar"]),
        (["other.tar", "images/a.tar", "images"], ["2/x.jpg", "1/a.tar"]),
    ],
)
def test_locators_name_no_folder_of_this_machine(
    tmp_path: Path, locations: list[str], paths: list[str]
) -> None:
    """They are the same wherever the places lie, and lead nowhere else."""
    for name in ("images/a.tar", "images/b.tar", "other.tar"):
        make_tar(tmp_path / name, [(f"{name[-5]}.jpg", JPG2)])
    for name in ("images/x.jpg", "secret.jpg"):
        (tmp_path / name).write_bytes(JPG)
    (tmp_path / "raw").mkdir()
    path = tmp_path / "raw" / "lines.jsonl"
    path.write_text(json.dumps({"images": ["x.jpg", "a.jpg"]}) + "\n")
    text = " ".join(f"{tmp_path}/{name}" for name in locations)
    rows = read(path, text, relative_to=str(path.parent))
    assert [row["binary_content"] for row in rows] == [JPG, JPG2]
    found = [json.loads(row["source_ref"])["path"] for row in rows]
    assert found == [f"images-from://{each}" for each in paths]

    outside = ["0/../secret.jpg", "9/x.jpg", "0", "", "x/x.jpg", "0//etc/passwd"]
    table = pa.table(
        {
            "modality": ["image"] * len(outside),
            "binary_content": pa.nulls(len(outside), pa.large_binary()),
            "source_ref": [json.dumps({"path": f"images-from://{each}"}) for each in outside],
            "materialize_error": pa.nulls(len(outside), pa.string()),
        }
    )
    table = materialize(table, images_from=text)
    assert table.column("binary_content").null_count == len(outside)
    assert table.column("materialize_error").null_count == 0


def test_a_broken_data_url_is_told(tmp_path: Path) -> None:
    """And not looked up as a name, with or without places."""
    url = "data:image/png;base64,!!!"
    expected = f"dangling reference {url!r:.200}: a broken data URL: no valid base64"
    lines, table = tmp_path / "lines.jsonl", tmp_path / "t.parquet"
    lines.write_text(json.dumps({"texts": ["x", None], "images": [None, url]}) + "\n")
    pq.write_table(pa.table({"images": [[None, url]], "texts": [["x", None]]}), table)
    (tmp_path / "images").mkdir()
    for path, text in ((lines, ""), (lines, str(tmp_path / "images")), (table, str(tmp_path / "images"))):
        assert [row["materialize_error"] for row in read(path, text)] == [expected]


def test_documents_of_parquet_name_urls(tmp_path: Path, downloads: Path) -> None:
    """As OBELICS has them: a URL or null for each item."""
    path = tmp_path / "o.parquet"
    urls = [[URL, None, "http://example.org/none"], [None, "http://example.org/twice", None]]
    pq.write_table(pa.table({"images": urls, "texts": [[None, "t", None], ["u", None, "v"]]}), path)
    rows = read(path, str(downloads), quarantine_errors=True)
    assert [row["binary_content"] for row in rows] == [JPG, None, None]
    assert [json.loads(row["_source"])["token"] for row in rows] == [
        URL,
        "http://example.org/none",
        "http://example.org/twice",
    ]
    assert json.loads(rows[0]["source_ref"])["path"] == "images-from://0/00000.tar"
    assert [row["materialize_error"].partition(":")[0] for row in rows[1:]] == [
        "the download failed",
        "ambiguous reference 'http",
    ]
    blobs = [[{"bytes": JPG2, "path": "x"}, {"bytes": None, "path": "000000001"}]]
    pq.write_table(pa.table({"images": blobs, "texts": [["a", "b"]]}), path)
    assert [row["binary_content"] for row in read(path, str(downloads))] == [JPG2, JPG2]


def test_jsons_of_tars_name_images_elsewhere(tmp_path: Path) -> None:
    """Their own members go first; what is ambiguous there is not looked for elsewhere."""
    images = tmp_path / "images"
    images.mkdir()
    for name in ("own.jpg", "other.jpg", "s.own.jpg"):
        (images / name).write_bytes(JPG2)
    document = {"texts": [], "images": ["own.jpg", "other.jpg"]}
    tar = make_tar(tmp_path / "a.tar", [("s.json", document), ("own.jpg", JPG)])
    assert [row["binary_content"] for row in read(tar, str(images))] == [JPG, JPG2]
    tar = make_tar(tmp_path / "b.tar", [("s.json", document), ("own.jpg", JPG), ("s.own.jpg", JPG)])
    first, second = read(tar, str(images))
    assert first["materialize_error"].startswith("ambiguous reference 'own.jpg': members")
    assert second["binary_content"] == JPG2


def test_what_is_no_image_or_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "key.jpg").write_bytes(b"-----BEGIN PRIVATE KEY-----")
    (tmp_path / "images" / "large.jpg").write_bytes(JPG)
    path = tmp_path / "lines.jsonl"
    path.write_text(json.dumps({"images": ["key.jpg", "large.jpg"]}) + "\n")
    rows = read(path, str(tmp_path / "images"), max_member_bytes=len(JPG) - 1)
    assert [row["binary_content"] for row in rows] == [None, None]
    assert rows[0]["materialize_error"] == "the source_ref names bytes that are no image"
    assert rows[1]["materialize_error"].startswith("oversized member")


def test_images_of_a_store(tmp_path: Path) -> None:
    """A folder and tars behind URLs: listed, indexed, and read by range."""
    fs, _ = filesystem("memory://")
    tar = make_tar(tmp_path / "t.tar", [("m.jpg", JPG)])
    fs.pipe("/places/images/deep/f.jpg", JPG2)
    fs.pipe("/places/tars/t.tar", tar.read_bytes())
    path = tmp_path / "lines.jsonl"
    path.write_text(json.dumps({"images": ["deep/f.jpg", "m.jpg", "none.jpg", "../tars/t.tar"]}) + "\n")
    rows = read(path, "memory:///places/images memory:///places/tars/*.tar")
    assert [row["binary_content"] for row in rows] == [JPG2, JPG, None, None]
    assert json.loads(rows[0]["source_ref"])["path"] == "memory:///places/images/deep/f.jpg"
    fs.rm("/places", recursive=True)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("none.tar", "MM_IMAGES_FROM: {folder}/none.tar: no such file"),
        (
            "a.tar.gz",
            "MM_IMAGES_FROM: {folder}/a.tar.gz: packed, so that no image can be read alone: unpack it",
        ),
        ("notes.txt", "MM_IMAGES_FROM: {folder}/notes.txt: neither a folder nor a tar"),
    ],
)
def test_places_that_cannot_be_used(tmp_path: Path, name: str, line: str) -> None:
    make_tar(tmp_path / "a.tar.gz", [], "w:gz")
    (tmp_path / "notes.txt").touch()
    with pytest.raises((OSError, ValueError)) as caught:
        places.image_places(str(tmp_path / name))
    assert str(caught.value) == line.format(folder=tmp_path)


def test_a_damaged_tar_is_told_and_the_rest_is_found(tmp_path: Path) -> None:
    tar = make_tar(tmp_path / "a.tar", [("a.jpg", JPG), ("b.jpg", JPG2)])
    tar.write_bytes(tar.read_bytes()[: 512 + len(JPG) // 512 * 512 + 512 + 600])
    made = found(tar)
    with pytest.warns(UserWarning, match="images in the damaged range are not found"):
        assert data(made.find("a.jpg")) == JPG
    assert str(data(made.find("b.jpg"))).startswith("dangling reference")


def test_places_are_looked_through_again_when_they_change(tmp_path: Path) -> None:
    make_tar(tmp_path / "a.tar", [("a.jpg", JPG)])
    made = found(tmp_path)
    assert found(tmp_path) is made
    make_tar(tmp_path / "b.tar", [("b.jpg", JPG2)])
    assert data(found(tmp_path).find("b.jpg")) == JPG2


def test_the_workers_of_a_pool_share_the_index(tmp_path: Path, downloads: Path, monkeypatch: Any) -> None:
    """The second process makes none, and finds the same."""
    tokens = [URL, "000000001", "000010001.jpg", "http://example.org/none", "http://example.org/twice", "x"]
    alone = list(map(found(downloads).find, tokens))
    keep_copies(KeptCopies.beside(str(tmp_path)))
    try:
        listing = places._Listing.of(str(downloads), None)
        assert list(map(ImagePlaces(listing).find, tokens)) == alone
        monkeypatch.setattr(places, "_add_tar", None)
        assert list(map(ImagePlaces(listing).find, tokens)) == alone
    finally:
        keep_copies(None)
