"""Tars of image-text pairs: which tars are taken for them, and what becomes of each key."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from mm_assets.formats.webdataset import MAX_JSON_BYTES, SampleError
from mm_assets.interleaved import InterleavedWebdatasetReader
from mm_assets_tests.formats.images.pictures import picture
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.formats.webdataset.tolerant_reading import Reading, located_bytes, read_tolerantly

PICTURES = [picture(number)[1] for number in range(4)]
PNG = PICTURES[0]
PAIR: list[tuple[str, Any]] = [("good.jpg", PICTURES[1]), ("good.txt", b"a good pair")]


def items(reading: Reading, sample_id: str) -> list[tuple[int, str, Any, str | None]]:
    """(position, modality, content, error) of the items of a sample."""
    rows = [row for row in reading.rows if row["sample_id"] == sample_id and row["position"] >= 0]
    return [
        (r["position"], r["modality"], r["text_content"] or r["binary_content"], r["materialize_error"])
        for r in rows
    ]


def members_of(reading: Reading, sample_id: str) -> list[str]:
    """The members that the locators of a sample's rows name."""
    return [row["source_ref"][1] for row in reading.rows if row["sample_id"] == sample_id]


def read(folder: Path, members: list[tuple[str, Any]], **options: Any) -> Reading:
    return read_tolerantly(make_tar(folder / "shard.tar", members), **options)


WHOLE: dict[str, list[tuple[str, Any]]] = {
    "image, text and json": [("k.jpg", PNG), ("k.txt", b"words"), ("k.json", {"url": "u", "key": "k"})],
    "image and text": [("k.jpg", PNG), ("k.txt", b"words")],
    "image and json": [("k.jpg", PNG), ("k.json", {"caption": "words", "url": "u"})],
    "any order": [("k.txt", b"words"), ("k.json", {"url": "u"}), ("k.jpg", PNG)],
    "upper case": [("k.JPG", PNG), ("k.TXT", b"words"), ("k.JSON", {"url": "u"})],
    "byte order mark": [("k.webp", PNG), ("k.txt", b"\xef\xbb\xbfwords")],
}


@pytest.mark.parametrize("members", WHOLE.values(), ids=WHOLE)
def test_a_pair_is_one_sample_with_a_text_and_an_image(
    tmp_path: Path, members: list[tuple[str, Any]]
) -> None:
    found = read(tmp_path, members)
    assert found.ids == ["k"]
    assert items(found, "k") == [(0, "text", "words", None), (1, "image", PNG, None)]
    assert (found.losses, found.survey.unreferenced, found.survey.unresolved) == ([], (), ())
    assert (found.survey.members, [facts.images for facts in found.survey.samples]) == (len(members), [1])
    has_url = any("url" in value for _, value in members if isinstance(value, dict))
    assert found.table.schema.names[8:] == [
        *(["url"] if has_url else []),
        *(["key"] if "key" in str(members) else []),
    ]


def test_locators_name_the_member_that_each_item_is(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        [
            *WHOLE["image, text and json"],
            ("m.png", PNG),
            ("m.txt", b"t"),
            ("n.png", PNG),
            ("n.json", {"caption": "t"}),
        ],
    )
    assert members_of(found, "k") == ["k.json", "k.txt", "k.jpg"]
    assert members_of(found, "m") == ["m.txt", "m.txt", "m.png"]
    assert members_of(found, "n") == ["n.json", "n.json", "n.png"]


def test_fields_become_columns_and_a_caption_beside_a_text_is_one_of_them(tmp_path: Path) -> None:
    fields = {
        "caption": "other words",
        "width": 640,
        "similarity": 0.5,
        "exif": {"a": [1]},
        "position": 7,
        "none": None,
    }
    found = read(tmp_path, [("k.jpg", PNG), ("k.txt", b"words"), ("k.json", fields)])
    row = found.rows[0]
    assert (row["caption"], row["width"], row["similarity"], row["exif"]) == (
        "other words",
        640,
        0.5,
        '{"a":[1]}',
    )
    assert json.loads(row["_source"]) == {"fields": {"position": 7}, "nulls": ["none"]}
    assert items(found, "k")[0] == (0, "text", "words", None)
    assert found.table.schema.field("width").type == pa.int64()


def test_keys_are_paths_without_their_last_suffix(tmp_path: Path) -> None:
    members = [
        ("a/x.jpg", PICTURES[0]), ("a/x.txt", b"a"), ("b/x.jpg", PICTURES[1]), ("b/x.txt", b"b"),
        ("v.1.jpg", PICTURES[2]), ("v.1.txt", b"v"),
    ]  # fmt: skip
    found = read(tmp_path, members)
    assert {key: [content for _, _, content, _ in items(found, key)] for key in found.ids} == {
        "a/x": ["a", PICTURES[0]], "b/x": ["b", PICTURES[1]], "v.1": ["v", PICTURES[2]],
    }  # fmt: skip


def test_a_key_without_a_caption_has_its_image_alone(tmp_path: Path) -> None:
    members = [
        ("k.jpg", PNG),
        ("k.json", {"caption": None, "n": 1}),
        ("l.jpg", PNG),
        ("l.json", {"caption": ["a", "b"], "n": 2}),
    ]
    found = read(tmp_path, [*PAIR, *members])
    assert items(found, "k") == items(found, "l") == [(1, "image", PNG, None)]
    assert [row["caption"] for row in found.rows if row["sample_id"] == "l"] == ['["a","b"]', None]


FAULTY: dict[str, tuple[list[tuple[str, Any]], str]] = {
    "text without an image": ([("k.txt", b"words")], "missing member: no image of key 'k'"),
    "caption without an image": ([("k.json", {"caption": "words"})], "missing member: no image of key 'k'"),
    "two images": (
        [("k.jpg", PNG), ("k.png", PICTURES[2]), ("k.txt", b"words")],
        "ambiguous: key 'k' has 2 images: k.jpg, k.png",
    ),
    "two spellings": (
        [("k.jpg", PNG), ("k.JPG", PICTURES[2]), ("k.txt", b"words")],
        "ambiguous: key 'k' has 2 images: k.jpg, k.JPG",
    ),
    "one name twice": (
        [("k.jpg", PNG), ("k.jpg", PICTURES[2]), ("k.txt", b"words")],
        "ambiguous: key 'k' has 2 images: k.jpg, k.jpg",
    ),
}


@pytest.mark.parametrize(("members", "message"), FAULTY.values(), ids=FAULTY)
def test_an_image_that_is_not_just_one_is_an_error_row(
    tmp_path: Path, members: list[tuple[str, Any]], message: str
) -> None:
    found = read(tmp_path, [*PAIR, *members])
    assert items(found, "k") == [(0, "text", "words", None), (1, "image", None, message)]
    assert found.survey.unresolved == (("k", 1, message),)
    assert found.survey.unreferenced == tuple(
        name for name, value in members if isinstance(value, bytes) and not name.endswith("txt")
    )
    assert found.ids == ["good", "k"]


def test_a_json_without_caption_and_image_is_no_sample_without_items(tmp_path: Path) -> None:
    found = read(tmp_path, [*PAIR, ("stats.json", {"count": 5})])
    assert items(found, "stats") == [(1, "image", None, "missing member: no image of key 'stats'")]


LOST: dict[str, tuple[list[tuple[str, Any]], str, str, str]] = {
    "text that is not UTF-8": (
        [("k.jpg", PNG), ("k.txt", b"\xff\xfew")],
        "not_utf8",
        "k.txt: not UTF-8",
        "k.txt",
    ),
    "text beside a json": (
        [("k.jpg", PNG), ("k.json", {"sample_id": "id"}), ("k.txt", b"\xff")],
        "not_utf8",
        "k.txt: not UTF-8",
        "k.txt",
    ),
    "bad json": (
        [("k.jpg", PNG), ("k.json", b"{"), ("k.txt", b"words")],
        "bad_json",
        "k.json: not JSON",
        "k.json",
    ),
    "two texts": (
        [("k.jpg", PNG), ("k.txt", b"a"), ("k.TXT", b"b")],
        "dangling_reference",
        "key 'k' has 2 texts: k.txt, k.TXT",
        "k.txt",
    ),
}


@pytest.mark.parametrize(("members", "kind", "words", "member"), LOST.values(), ids=LOST)
def test_a_pair_that_cannot_be_read_is_lost_alone(
    tmp_path: Path, members: list[tuple[str, Any]], kind: str, words: str, member: str
) -> None:
    found = read(tmp_path, [*PAIR, *members])
    assert found.ids == ["good"]
    (loss,) = found.losses
    stated = next((value["sample_id"] for _, value in members if isinstance(value, dict)), "k")
    assert (loss.sample_id, loss.position, loss.kind) == (stated, -1, kind)
    assert words in loss.reason
    assert located_bytes(tmp_path / "shard.tar", loss) == dict(members)[member]


def test_a_text_beyond_the_limit_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_JSON_BYTES >= 1 << 20
    monkeypatch.setattr("mm_assets.formats.webdataset.samples.MAX_JSON_BYTES", 20)
    found = read(tmp_path, [*PAIR, ("k.jpg", PNG), ("k.txt", b"w" * 21)])
    (loss,) = found.losses
    assert (loss.kind, found.ids) == ("oversized_member", ["good"])
    assert "k.txt: text member of 21 bytes, more than 20" in loss.reason


def test_an_image_beyond_the_limit_is_an_error_row(tmp_path: Path) -> None:
    found = read(tmp_path, [*PAIR, ("k.png", PNG + bytes(5000)), ("k.txt", b"words")], max_member_bytes=5000)
    assert items(found, "k")[1][3] == f"oversized member 'k.png': {len(PNG) + 5000} bytes, at most 5000"


def test_links_are_followed(tmp_path: Path) -> None:
    shard = tmp_path / "shard.tar"
    with tarfile.open(shard, "w") as tar:
        for name, data in (("data/p", PNG), ("data/t", b"words")):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        for name, target in (
            ("k.png", "data/p"),
            ("k.txt", "data/t"),
            ("l.png", "gone"),
            ("l.txt", "data/t"),
        ):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
    found = read_tolerantly(shard)
    assert items(found, "k") == [(0, "text", "words", None), (1, "image", PNG, None)]
    assert (
        items(found, "l")[1][3]
        == "dangling reference: member 'l.png': links to 'gone', which is no file of this tar"
    )


DOCUMENTS: dict[str, list[tuple[str, Any]]] = {
    "texts": [("d.json", {"texts": ["t"]})],
    "images": [("d.json", {"images": [None]})],
    "no lists": [("d.json", {"texts": None, "caption": "c"})],
    "our layout": [("d.json", {"sample_id": "d", "_row_extra": {}})],
    "last of many": [("e.json", {"caption": "c"}), ("e.png", PNG), ("d.json", {"images": []})],
}


@pytest.mark.parametrize("members", DOCUMENTS.values(), ids=DOCUMENTS)
def test_a_tar_with_a_document_has_no_pairs(tmp_path: Path, members: list[tuple[str, Any]]) -> None:
    """What no document refers to stays what it was: a member that is no part of any sample."""
    found = read(tmp_path, [*PAIR, *members])
    assert "good" not in found.ids and "d" in found.ids
    assert found.survey.unreferenced[:2] == ("good.jpg", "good.txt")
    assert [row for row in found.rows if row["modality"] == "image"] == []


def test_the_configured_fields_tell_documents(tmp_path: Path) -> None:
    members = [*PAIR, ("d.json", {"text_list": ["t"], "image_list": [None]})]
    assert read(tmp_path, members).ids == ["good", "d"]
    found = read(tmp_path, members, texts_field="text_list", images_field="image_list")
    assert (found.ids, found.survey.unreferenced) == (["d"], ("good.jpg", "good.txt"))


NO_PAIRS: dict[str, list[tuple[str, Any]]] = {
    "no caption": [("k.json", {"n": 1}), ("k.png", PNG)],
    "caption of another key": [("k.json", {"caption": "c"}), ("other.png", PNG)],
    "nothing": [],
}


@pytest.mark.parametrize("members", NO_PAIRS.values(), ids=NO_PAIRS)
def test_without_an_image_and_a_caption_of_one_key_there_are_no_pairs(
    tmp_path: Path, members: list[tuple[str, Any]]
) -> None:
    found = read(tmp_path, members)
    assert found.ids == [name[:-5] for name, _ in members if name.endswith(".json")]
    assert [row for row in found.rows if row["position"] >= 0] == []


def test_an_image_without_caption_and_json_is_unreferenced(tmp_path: Path) -> None:
    found = read(tmp_path, [*PAIR, ("k.png", PNG), ("good.seg.png", PNG)])
    assert (found.ids, found.survey.unreferenced) == (["good"], ("k.png", "good.seg.png"))


def test_ids_come_from_the_json_and_take_a_prefix(tmp_path: Path) -> None:
    members = [
        ("0.png", PNG),
        ("0.txt", b"a"),
        ("0.json", {"sample_id": "first", "uid": "u0"}),
        ("1.png", PNG),
        ("1.txt", b"b"),
    ]
    assert read(tmp_path, members).ids == ["first", "1"]
    by_field = read(tmp_path, members, sample_id_field="uid")
    assert (by_field.ids, [(loss.sample_id, loss.kind) for loss in by_field.losses]) == (
        ["u0"],
        [("1", "bad_sample_id")],
    )
    shard = make_tar(tmp_path / "shard-7.tar", members)
    (batch,) = InterleavedWebdatasetReader(str(shard), sample_id_prefix="shard")
    assert batch.data["sample_id"].unique().to_pylist() == ["shard-7/first", "shard-7/1"]


def test_per_item_fields_and_the_named_image(tmp_path: Path) -> None:
    members = [
        ("k.txt", b"words"),
        ("k.json", {"widths": [640], "langs": ["en"], "file": "pictures/1.png"}),
        ("pictures/1.png", PNG),
    ]
    found = read(
        tmp_path, [*PAIR, *members, ("k.png", PICTURES[3])],
        per_image_fields=["widths"], per_text_fields=["langs"], image_member_field="file",
    )  # fmt: skip
    assert items(found, "k") == [(0, "text", "words", None), (1, "image", PNG, None)]
    assert [(r["langs"], r["widths"]) for r in found.rows if r["sample_id"] == "k"] == [
        (None, None),
        ("en", None),
        (None, 640),
    ]
    assert found.survey.unreferenced == ("k.png",)


def test_without_set_aside_the_first_fault_raises(tmp_path: Path) -> None:
    shard = make_tar(tmp_path / "x.tar", [*PAIR, ("k.png", PNG), ("k.txt", b"\xff")])
    with pytest.raises(SampleError, match=r"x\.tar: k\.txt: not UTF-8"):
        list(InterleavedWebdatasetReader(str(shard)))


def test_batches_are_bounded_by_texts_that_lie_beside_the_json(tmp_path: Path) -> None:
    members: list[tuple[str, Any]] = []
    for number in range(40):
        members += [
            (f"{number}.png", PNG),
            (f"{number}.txt", "ü".encode() * 5000),
            (f"{number}.json", {"n": number}),
        ]
    shard = make_tar(tmp_path / "x.tar", members)
    limit = 60_000
    batches = list(InterleavedWebdatasetReader(str(shard), max_batch_bytes=limit))
    assert sum(batch.num_samples for batch in batches) == 40
    assert all(batch.nbytes <= limit for batch in batches)
