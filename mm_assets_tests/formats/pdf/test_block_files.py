"""Block files: what a model found takes the place of the layout; a bad one costs its PDF."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mm_assets.formats.raw_shards import RawLocations, location_of
from mm_assets_tests.formats.pdf.pdf_files import Page, jpeg, jpeg_picture, lines, pdf
from mm_assets_tests.formats.pdf.reading import files_in, items, read, read_one
from mm_assets_tests.formats.raw_tars import make_tar

RED = jpeg(200, 10, 10)
PDF = pdf(
    [
        Page(lines(["not asked for"], 50, 700), [jpeg_picture(RED, (60, 400, 120, 80))]),
        Page(more="/Rotate 90"),
    ]
)
ON_IMAGE = [0.1, 0.4, 0.3, 0.5]
GOOD: dict[str, Any] = {"page": 1, "box": [0.1, 0.1, 0.9, 0.2], "type": "text", "text": "words"}


def test_blocks_become_items_in_the_order_of_the_file(tmp_path: Path) -> None:
    blocks = [
        {"page": 2, "box": [0, 0, 1, 0.5], "type": "title", "text": "Model's words"},
        {"page": 1, "box": ON_IMAGE, "type": "image"},
        {"page": 1, "box": [0.1, 0.45, 0.3, 0.6], "type": "image"},
        {"page": 1, "box": [0.5, 0.5, 0.75, 0.75], "type": "formula", "text": "x^2"},
    ]
    rows = read_one(tmp_path, PDF, json.dumps(blocks).encode())
    assert [(row["position"], row["page"], row["box"], row["block_type"]) for row in rows[1:]] == [
        (0, 2, [0.0, 0.0, 1.0, 0.5], "title"),
        (1, 1, ON_IMAGE, "image"),
        (2, 1, [0.1, 0.45, 0.3, 0.6], "image"),
        (3, 1, [0.5, 0.5, 0.75, 0.75], "formula"),
    ]
    title, embedded, crop, formula = items(rows)
    assert (title, embedded, formula) == ("Model's words", RED, "x^2")
    picture = Image.open(io.BytesIO(crop))
    assert (picture.format, picture.size) == ("PNG", (240, 240))  # of 600 x 800 points at 144 dpi
    red, green, blue = picture.getpixel((120, 40))  # type: ignore[misc]
    assert (red > 190, green < 20, blue < 20) == (True, True, True)
    assert picture.getpixel((120, 200)) == (255, 255, 255)


def test_no_blocks_are_a_sample_without_items(tmp_path: Path) -> None:
    assert [row["modality"] for row in read_one(tmp_path, PDF, b" []")] == ["metadata"]


@pytest.mark.parametrize(
    ("blocks", "kind", "says"),
    [
        (b"[{]", "bad_json", "docs/doc.blocks.json: not JSON"),
        (b"{}", "bad_layout", "docs/doc.blocks.json: no JSON list of blocks"),
        (b'[], "x": []', "bad_layout", "docs/doc.blocks.json: no JSON list of blocks"),
        (b"[\xff]", "not_utf8", "docs/doc.blocks.json: not UTF-8"),
        ([GOOD, 7], "bad_layout", "docs/doc.blocks.json: block 2: no object: 7"),
        ([{**GOOD, "page": 3}], "bad_layout", "block 1: 'page' is no number from 1 to 2: 3"),
        ([{**GOOD, "page": True}], "bad_layout", "'page' is no number from 1 to 2: true"),
        ([{**GOOD, "box": [0, 0, 1]}], "bad_layout", "'box' is no [left, top, right, bottom]"),
        ([{**GOOD, "box": [0.2, 0, 0.2, 1]}], "bad_layout", "'box' is no [left, top, right, bottom]"),
        ([{**GOOD, "box": [0, 0, 600, 800]}], "bad_layout", "in shares of the page from 0 to 1"),
        ([{**GOOD, "type": None}], "bad_layout", "'type' is no text: null"),
        ([{**GOOD, "text": None}], "bad_layout", "'text' of a block of type 'text' is no text: null"),
        ([{**GOOD, "type": "image"}], "bad_layout", "an image has no 'text'"),
        ([{**GOOD, "bbox": []}], "bad_layout", "field 'bbox' is none of page, box, type, text"),
    ],
)
def test_a_bad_block_file_is_quarantined_with_its_place(
    tmp_path: Path, blocks: Any, kind: str, says: str
) -> None:
    data = blocks if isinstance(blocks, bytes) else json.dumps(blocks).encode()
    files = {"doc.pdf": PDF, "doc.blocks.json": data, "fine.pdf": PDF}
    rows, losses = read(files_in(tmp_path, files))
    assert {row["sample_id"] for row in rows["docs"]} == {"fine"}
    (loss,) = losses["docs"]
    assert (loss.sample_id, loss.kind) == ("doc", kind)
    assert says in loss.reason
    ref = json.loads(str(loss.source_ref))
    assert (ref["path"], ref["byte_size"]) == ("docs/doc.blocks.json", len(data))


def test_in_a_tar_the_block_file_has_the_key_of_its_pdf(tmp_path: Path) -> None:
    from mm_assets_tests.formats.raw_tars import make_tar

    members = [
        ("a/one.blocks.json", [GOOD]),
        ("a/one.pdf", PDF),
        ("two.pdf", PDF),
        ("three.blocks.json", [GOOD]),
        ("README", b"read me"),
    ]
    tar = make_tar(tmp_path / "docs" / "part.tar", members)
    rows, losses = read(f"pdf={tar.parent}")
    texts = {row["sample_id"]: row["text_content"] for row in rows["part"] if row["modality"] == "text"}
    assert texts == {"a/one": "words", "two": "not asked for"}
    assert sorted((loss.outcome, json.loads(str(loss.source_ref))["member"]) for loss in losses["part"]) == [
        ("unreferenced", "README"),
        ("unreferenced", "three.blocks.json"),
    ]


def test_block_files_in_a_folder_that_no_pdf_finds_are_told(tmp_path: Path) -> None:
    one = files_in(tmp_path, {"a.pdf": PDF, "a.blocks.json": b"[]", "x/A.blocks.json": b"[]", "x/a.pdf": PDF})
    why = "not read: no PDF of this name beside it (upper and lower case count)"
    line = f"{tmp_path}/docs/x/A.blocks.json: {why}"
    assert RawLocations(one).shards().unmatched == (line,)
    with pytest.warns(UserWarning) as told:
        location_of(one)
    assert [str(warning.message) for warning in told] == [line]
    several = files_in(tmp_path, {"b.blocks.json": b"[]"})
    (line,) = RawLocations(several).shards().unmatched
    assert line.startswith(f"2 block files, the first of them {tmp_path}/docs/b.blocks.json: not read: ")


def test_block_files_of_pdfs_that_are_there_are_told_of_nowhere(tmp_path: Path) -> None:
    files_in(tmp_path, {"a.PDF": PDF, "a.blocks.json": b"[]", "b.pdf": PDF, "B.blocks.json": b"[]"})
    for location in (f"pdf={tmp_path}/docs/a.PDF", f"{tmp_path}/docs/*.pdf"):
        assert RawLocations(location).shards().unmatched == ()


def test_block_files_in_a_tar_that_no_pdf_finds_are_unreferenced_members(tmp_path: Path) -> None:
    members = [("a.pdf", PDF), ("a.blocks.json", b"[]"), ("A.blocks.json", b"[]"), ("b.blocks.json", b"[]")]
    tar = make_tar(tmp_path / "x.tar", members)
    rows, losses = read(f"pdf={tar}")
    assert [row["modality"] for row in rows["x"]] == ["metadata"]
    assert [(loss.outcome, loss.kind) for loss in losses["x"]] == [
        ("unreferenced", "unreferenced_member")
    ] * 2
    assert [json.loads(loss.source_ref or "")["member"] for loss in losses["x"]] == [
        "A.blocks.json",
        "b.blocks.json",
    ]
