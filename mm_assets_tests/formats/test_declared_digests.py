"""Images are compared with the digests that their documents declare, where these are of the stored bytes."""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mm_assets.formats.registry import reader_for
from mm_assets.model.errors import DIGEST_MISMATCH, fault_of
from mm_assets_tests.cli.commands import ok, run
from mm_assets_tests.formats.images.tiff_tools import grey_page, write_tiff
from mm_assets_tests.formats.parquet_of_others import IMAGE, PICTURES, documents, image
from mm_assets_tests.formats.raw_tars import make_tar

P0, P1, P2 = PICTURES[:3]
WRONG = "0" * 64


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def faults(kind: str, source: Path, **arguments: Any) -> list[str | None]:
    """The class of each image's fault, in order."""
    batches = reader_for(kind, str(source), **arguments)
    rows = [row for batch in batches for row in batch.data.to_pylist() if row["modality"] == "image"]
    assert all(row["binary_content"] for row in rows)
    return [row["materialize_error"] and fault_of(row["materialize_error"]) for row in rows]


def pair(folder: Path, fields: dict[str, Any], stored: bytes = P0) -> Path:
    return make_tar(folder / "a.tar", [("0.png", stored), ("0.txt", b"c"), ("0.json", fields)])


def test_a_pair(tmp_path: Path) -> None:
    declared = {"url": "u", "sha256": sha256(P0), "md5": md5(P0).upper()}
    assert faults("webdataset", pair(tmp_path, declared)) == [None]
    for name, value in (("sha256", sha256(P1)), ("md5", md5(P1))):
        tar = pair(tmp_path, {**declared, name: value})
        assert faults("webdataset", tar) == [DIGEST_MISMATCH]
        assert faults("webdataset", tar, declared_digests="off") == [None]
        (row,) = [
            r for b in reader_for("webdataset", str(tar)) for r in b.data.to_pylist() if r["position"] == 1
        ]
        found = {"sha256": sha256(P0), "md5": md5(P0)}[name]
        assert row["materialize_error"] == f"digest mismatch: its {name} is {found}, and {value} is declared"
        assert row["binary_content"] == P0


@pytest.mark.parametrize(
    "value", [None, "", "abc", 17, WRONG[:-1], WRONG + "0", "g" * 64, [WRONG, WRONG], {"of": WRONG}, True]
)
def test_what_is_no_digest_of_the_image_is_left_alone(tmp_path: Path, value: Any) -> None:
    assert faults("webdataset", pair(tmp_path, {"sha256": value, "sha512": WRONG, "sha1": WRONG})) == [None]


@pytest.mark.parametrize(
    ("sizes", "by_default", "with_all"),
    [
        ({}, DIGEST_MISMATCH, DIGEST_MISMATCH),
        ({"width": 9, "height": 9}, DIGEST_MISMATCH, DIGEST_MISMATCH),
        # `disable_all_reencoding`
        (dict.fromkeys(("width", "height", "original_width", "original_height")), *[DIGEST_MISMATCH] * 2),
        ({"width": 9, "height": 9, "original_width": 9, "original_height": 9}, None, DIGEST_MISMATCH),
        ({"width": 9, "height": 9, "original_width": 18, "original_height": 18}, None, None),
        ({"original_width": 18, "original_height": 18}, None, None),
    ],
)
def test_records_of_img2dataset(
    tmp_path: Path, sizes: dict[str, Any], by_default: str | None, with_all: str | None
) -> None:
    """It takes the digest before it decodes an image, which it then encodes anew, whatever the size."""
    tar = pair(tmp_path, {"key": "0", "status": "success", "sha256": WRONG, **sizes})
    assert faults("webdataset", tar) == [by_default]
    assert faults("webdataset", tar, declared_digests="all") == [with_all]


@pytest.mark.parametrize("per_image_fields", [(), ("sha256",)])
def test_lists_with_one_digest_for_each_image(tmp_path: Path, per_image_fields: tuple[str, ...]) -> None:
    listed = {"sha256": [sha256(P0), WRONG, None]}
    members = [(f"k.{n}.png", data) for n, data in enumerate((P0, P1, P2))]
    names = [name for name, _ in members]
    tar = make_tar(tmp_path / "a.tar", [("k.json", {"texts": [], "images": names, **listed}), *members])
    expected = [None, DIGEST_MISMATCH, None]
    assert faults("webdataset", tar, per_image_fields=per_image_fields) == expected


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ([None, sha256(P0), None, sha256(P1)], [None, None]),
        ([None, sha256(P0), None, WRONG], [None, DIGEST_MISMATCH]),
        ([None, WRONG, None, None, None], [DIGEST_MISMATCH, None]),
        ([None, WRONG, None], [None, None]),  # a list of something else
        ([WRONG, WRONG, None, WRONG], [None, None]),
    ],
)
@pytest.mark.parametrize("per_image_fields", [(), ("sha256",)])
def test_lists_as_long_as_those_of_texts_and_images(
    tmp_path: Path, listed: list[str | None], expected: list[str | None], per_image_fields: tuple[str, ...]
) -> None:
    document = {"texts": ["t", None, "u", None], "images": [None, "0.png", None, "1.png"], "sha256": listed}
    tar = make_tar(tmp_path / "a.tar", [("k.json", document), ("0.png", P0), ("1.png", P1)])
    with warnings.catch_warnings(action="ignore"):
        assert faults("webdataset", tar, per_image_fields=per_image_fields) == expected


def test_one_digest_of_a_document_with_several_images_is_of_none(tmp_path: Path) -> None:
    document = {
        "texts": ["t", None, None],
        "images": [None, "0.png", "1.png"],
        "sha256": WRONG,
        "md5": md5(P2),
    }
    tar = make_tar(tmp_path / "a.tar", [("k.json", document), ("0.png", P0), ("1.png", P1)])
    assert faults("webdataset", tar) == [None, None]


def test_entries_of_images_with_digests(tmp_path: Path) -> None:
    infos = [
        {"image_name": f"{n}.png", "matched_text_index": 0, "md5": md5(data)}
        for n, data in enumerate((P0, P2))
    ]
    document = {"text_list": ["t"], "image_info": infos}
    tar = make_tar(tmp_path / "a.tar", [("d.json", document), ("0.png", P0), ("1.png", P1)])
    assert faults("webdataset", tar) == [None, DIGEST_MISMATCH]


def test_a_missing_image_keeps_its_own_fault(tmp_path: Path) -> None:
    document = {"texts": [], "images": ["gone.png"], "sha256": WRONG}
    tar = make_tar(tmp_path / "a.tar", [("k.json", document)])
    (row,) = [r for b in reader_for("webdataset", str(tar)) for r in b.data.to_pylist() if r["position"] == 0]
    assert fault_of(row["materialize_error"]) == "missing_member"


def test_frames_of_a_tiff_have_the_digest_of_the_file(tmp_path: Path) -> None:
    tiff = write_tiff([grey_page(2, 2, b"abcd"), grey_page(3, 1, b"efg")])
    for named, expected in ((sha256(tiff), None), (WRONG, DIGEST_MISMATCH)):
        document = {"texts": [None, "t", None], "images": ["0", None, "1"], "sha256": named}
        tar = make_tar(tmp_path / "a.tar", [("k.json", document), ("k.tiff", tiff)])
        assert faults("webdataset", tar) == [expected, expected]
        assert faults("webdataset", tar, declared_digests="off") == [None, None]
    one = {"texts": [], "images": ["0"], "sha256": sha256(tiff)}
    tar = make_tar(tmp_path / "a.tar", [("k.json", one), ("k.tiff", tiff)])
    assert faults("webdataset", tar) == [None]


def test_parquet_and_json_lines(tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "image": (IMAGE, [image(n, f"{n}.png") for n in range(3)]),
        "text": (pa.string(), ["a", "b", "c"]),
        "sha256": (pa.string(), [sha256(P0), WRONG, None]),
    }
    documents(tmp_path / "a.parquet", columns)
    expected = [None, DIGEST_MISMATCH, None]
    assert faults("parquet", tmp_path / "a.parquet") == expected
    assert faults("parquet", tmp_path / "a.parquet", declared_digests="off") == [None] * 3
    make_tar(tmp_path / "b.images.tar", [(f"{n}.png", data) for n, data in enumerate((P0, P1, P2))])
    digests = columns["sha256"][1]
    lines = [{"image": f"{n}.png", "text": "t", "sha256": digest} for n, digest in enumerate(digests)]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert faults("jsonl", tmp_path / "b.jsonl") == expected


def test_images_elsewhere_are_compared_on_request(tmp_path: Path) -> None:
    """Those that URLs lead to may be resized."""
    fields = {"caption": "c", "url": "https://e.org/0.png", "key": "0"}
    make_tar(tmp_path / "images" / "0.tar", [("0.png", P0), ("0.txt", b"c"), ("0.json", fields)])
    table = pa.table({"image": ["https://e.org/0.png"], "text": ["c"], "md5": [md5(P1)]})
    pq.write_table(table, tmp_path / "a.parquet")
    place = {"images_from": str(tmp_path / "images"), "relative_to": str(tmp_path)}
    assert faults("parquet", tmp_path / "a.parquet", **place) == [None]
    found = faults("parquet", tmp_path / "a.parquet", **place, declared_digests="all")
    assert found == [DIGEST_MISMATCH]


@pytest.mark.parametrize("to", ["parquet", "webdataset", "lance"])
def test_our_own_data_is_not_compared_again(tmp_path: Path, to: str) -> None:
    """A filter may have left one image of several to the digest of a document."""
    make_tar(tmp_path / "raw" / "a.tar", [("0.png", P0), ("0.txt", b"c"), ("0.json", {"sha256": WRONG})])
    ok("convert", tmp_path / "raw", tmp_path / "out", "--to", to, "--declared-digests", "off")
    assert faults(to, tmp_path / "out", materialize=True) == [None]


def test_convert_quarantines_what_differs(tmp_path: Path) -> None:
    """Which the policy decides, and the loss is listed."""
    members = [
        *(("good.png", P0), ("good.txt", b"c"), ("good.json", {"sha256": sha256(P0)})),
        *(("bad.png", P1), ("bad.txt", b"c"), ("bad.json", {"sha256": sha256(P0)})),
    ]
    make_tar(tmp_path / "raw" / "a.tar", members)
    convert = ("convert", tmp_path / "raw", tmp_path / "out", "--to", "parquet", "--on-materialize-error")
    refused = run(*convert, "error")
    assert refused.returncode == 1
    assert f"sample 'bad', position 1: digest mismatch: its sha256 is {sha256(P1)}" in refused.stderr
    said = ok(*convert, "drop_sample")
    assert "digest_mismatch 1, incomplete_sample 2" in said
