"""Shards of PDFs: how they are named and found, what makes them new, and what of them is lost."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.spec import AbstractFileSystem

from mm_assets.accounting.survey import survey_shard
from mm_assets.formats.pdf import process
from mm_assets.formats.pdf import shard as pdf_shard
from mm_assets.formats.raw_shards import RawLocations
from mm_assets.formats.webdataset import RawLayout
from mm_assets_tests.formats.pdf.pdf_files import Page, encrypted, jpeg, jpeg_picture, lines, pdf, text
from mm_assets_tests.formats.pdf.reading import files_in, items, read
from mm_assets_tests.formats.raw_tars import make_tar

GOOD = pdf([Page(text("fine", 50, 700))])


def _shards(locations: str) -> dict[str, str]:
    return {key: shard.version for key, shard in RawLocations(locations).shards().items()}


def test_the_title_of_a_scan_is_no_text_that_was_not_taken(tmp_path: Path) -> None:
    scan = Page(pictures=[jpeg_picture(jpeg(200, 30, 40), (50, 500, 120, 80))])
    locations = files_in(tmp_path, {"a.pdf": pdf([scan], info="/Title (A scan) /Author (nobody)")})
    (shard,) = RawLocations(locations).shards().values()
    survey = survey_shard("docs", [shard.uri], "v", RawLayout(), "", max_member_bytes=1 << 20)
    assert survey.samples["images"].to_pylist() == [1] and survey.samples["items"].to_pylist() == [2]
    assert "title" in survey.columns.declared.names
    assert survey.untaken == replace(survey, content=None).untaken == {}  # also in one by earlier code


def test_each_folder_of_pdfs_is_a_shard(tmp_path: Path) -> None:
    names = ("a.pdf", "b.PDF", "2020/a.pdf", "2020/x/c.pdf", ".hidden.pdf", "notes.txt")
    rows, losses = read(files_in(tmp_path, dict.fromkeys(names, GOOD)))
    assert losses == {"docs": [], "2020": [], "2020/x": []}
    assert {key: sorted({row["sample_id"] for row in found}) for key, found in rows.items()} == {
        "docs": ["a", "b"],
        "2020": ["a"],
        "2020/x": ["c"],
    }


@pytest.mark.parametrize("written", ["*.pdf", "{a,b}.pdf", "a.pdf docs/b.pdf", "a.pdf pdf=docs/b.pdf"])
def test_files_and_patterns_that_end_in_pdf_are_pdfs(
    tmp_path: Path, written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files_in(tmp_path, {"a.pdf": GOOD, "b.pdf": GOOD, "c.txt": b""})
    monkeypatch.chdir(tmp_path)
    rows, _ = read(f"docs/{written}")
    assert {key: {row["sample_id"] for row in found} for key, found in rows.items()} == {"docs": {"a", "b"}}


def test_tars_of_pdfs_are_a_shard_each(tmp_path: Path) -> None:
    for name in ("x", "y"):
        make_tar(tmp_path / "docs" / f"{name}.tar", [(f"{name}/1.pdf", GOOD), (f"{name}/2.PDF", GOOD)])
    rows, losses = read(f"pdf={tmp_path}/docs/*.tar")
    assert losses == {"x": [], "y": []}
    assert {row["sample_id"] for row in rows["y"]} == {"y/1", "y/2"}
    refs = [json.loads(row["source_ref"]) for row in rows["x"]][:2]
    assert [(ref["path"], ref["member"]) for ref in refs] == [
        ("x/x.tar", "x/1.pdf"),
        ("x/x.tar", "x/1.pdf: page 1, block 1"),
    ]
    assert (refs[0]["byte_offset"], refs[0]["byte_size"]) == (512, len(GOOD))


def test_a_name_that_is_not_utf8_is_passed_over_with_a_line(tmp_path: Path) -> None:
    locations = files_in(tmp_path, {"a.pdf": GOOD, os.fsdecode(b"b\xff.pdf"): GOOD})
    listing = RawLocations(locations).shards()
    assert (list(listing), len(listing.unmatched)) == (["docs"], 1)
    assert "not UTF-8" in listing.unmatched[0]
    rows, _ = read(locations)
    assert {row["sample_id"] for row in rows["docs"]} == {"a"}


def test_tars_beside_pdfs_are_left_alone(tmp_path: Path) -> None:
    make_tar(tmp_path / "docs" / "x.tar", [("1.pdf", GOOD)])
    assert list(_shards(files_in(tmp_path, {"a.pdf": GOOD}))) == ["docs"]


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("pdf={0}/none", "{0}/none: no such file"),
        ("pdf={0}/docs/*.pdf {0}/docs/x.tar", "PDFs and other locations cannot be mixed"),
        ("pdf={0}/empty", "{0}/empty: no .pdf/.tar/.tar.gz/.tgz file in this folder"),
        ("{0}/docs", "{0}/docs: PDFs are named as pdf={0}/docs"),
        ("pdf={0}/twice", "{0}/twice and {0}/twice/twice would both become partition 'twice'"),
    ],
)
def test_what_cannot_be_found_is_said_in_one_line(tmp_path: Path, written: str, says: str) -> None:
    (tmp_path / "empty").mkdir()
    files_in(tmp_path, {"a.pdf": GOOD})
    for folder in (tmp_path / "twice", tmp_path / "twice" / "twice"):
        folder.mkdir()
        (folder / "a.pdf").write_bytes(GOOD)
    with pytest.raises((ValueError, OSError)) as caught:
        _shards(written.format(tmp_path))
    assert says.format(tmp_path) in str(caught.value)


def test_a_shard_is_new_when_a_file_a_block_file_or_the_revision_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locations = files_in(tmp_path, {"a.pdf": GOOD, "more/b.pdf": GOOD})
    seen = [_shards(locations)]
    assert _shards(locations) == seen[0]
    changes: list[tuple[str, Any]] = [
        ("docs", lambda: (tmp_path / "docs" / "a.blocks.json").write_bytes(b"[]")),
        ("docs", lambda: (tmp_path / "docs" / "a.blocks.json").write_bytes(b"[ ]")),
        ("docs", lambda: (tmp_path / "docs" / "c.pdf").write_bytes(GOOD)),
        ("more", lambda: os.utime(tmp_path / "docs" / "more" / "b.pdf", (1, 1))),
    ]
    for shard, change in changes:
        change()
        seen.append(_shards(locations))
        assert [key for key in seen[-1] if seen[-1][key] != seen[-2][key]] == [shard]
    monkeypatch.setattr(pdf_shard, "_REVISION", "other")
    assert not set(_shards(locations).values()) & set(seen[-1].values())


BAD = {
    "no PDF": (b"<html>not found</html>", "no PDF: it does not begin with %PDF-"),
    "empty": (b"", "no PDF: it does not begin with %PDF-"),
    "cut": (GOOD[:-20], "the file is cut: it does not end with %%EOF"),
    "garbage": (b"%PDF-1.4\n" + bytes(range(256)) * 9 + b"%%EOF", "pdfium cannot open it"),
    "no pages": (pdf([]), "pdfium cannot open it, it is broken or has no pages"),
    "encrypted": (encrypted(), "encrypted: it needs a password"),
    "moved": (GOOD.replace(b"4 0 obj", b"\n\n\n4 0 obj"), "its cross-reference table is damaged"),
    "huge page": (
        pdf([Page(more="/MediaBox [0 0 20000 100]")]).replace(
            b"/MediaBox [0 0 600 800]", b"                       "
        ),
        "page 1 has 20000 x 100 points, at most 14400 a side",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_pdf_that_cannot_be_read_is_quarantined_and_the_others_go_on(tmp_path: Path, name: str) -> None:
    data, says = BAD[name]
    rows, losses = read(files_in(tmp_path, {"a.pdf": GOOD, "bad.pdf": data, "c.pdf": GOOD}))
    assert {row["sample_id"] for row in rows["docs"]} == {"a", "c"}
    (loss,) = losses["docs"]
    assert (loss.sample_id, loss.outcome, loss.kind) == ("bad", "quarantined", "unreadable_pdf")
    assert loss.reason.startswith(f"docs/bad.pdf: {says}")
    ref = json.loads(str(loss.source_ref))
    assert (ref["path"], ref["member"], ref["byte_size"]) == ("docs/bad.pdf", None, len(data))


def test_a_cut_tar_costs_what_is_cut(tmp_path: Path) -> None:
    tar = make_tar(tmp_path / "docs" / "x.tar", [("1.pdf", GOOD), ("2.pdf", b"bad"), ("3.pdf", GOOD)])
    start = tar.read_bytes().index(GOOD, 1024)
    tar.write_bytes(tar.read_bytes()[: start + 100])
    rows, losses = read(f"pdf={tar}")
    assert {row["sample_id"] for row in rows["x"]} == {"1"}
    assert [loss.kind for loss in losses["x"]] == ["unreadable_pdf", "truncated_tar"]
    assert losses["x"][0].reason.startswith("x/x.tar: 2.pdf: no PDF")


def test_of_two_pdfs_of_one_name_the_first_is_kept(tmp_path: Path) -> None:
    other = pdf([Page(text("other", 50, 700), [jpeg_picture(jpeg(1, 2, 3), (0, 0, 50, 50))])])
    rows, losses = read(files_in(tmp_path, {"a.PDF": GOOD, "a.pdf": other}))
    assert items(rows["docs"]) == ["fine"]
    assert {(loss.sample_id, loss.kind) for loss in losses["docs"]} == {("a", "duplicate_id")}


@pytest.mark.parametrize(
    ("module", "limit", "value", "says"),
    [
        (pdf_shard, "MAX_TEXT", 10, "more than 10 characters of text"),
        (process, "MAX_IMAGE_BYTES", 100, "its images take more than 100 bytes"),
    ],
)
def test_a_pdf_with_too_much_in_it_is_quarantined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, limit: str, value: int, says: str
) -> None:
    large = pdf(
        [Page(lines(["many words", "more"], 50, 700), [jpeg_picture(jpeg(1, 2, 3), (0, 0, 9, 9))]), Page()]
    )
    monkeypatch.setattr(module, limit, value)
    rows, losses = read(files_in(tmp_path, {"a.pdf": GOOD, "large.pdf": large}))
    assert {row["sample_id"] for row in rows["docs"]} == {"a"}
    assert [(loss.kind, loss.reason) for loss in losses["docs"]] == [
        ("unreadable_pdf", f"docs/large.pdf: {says}")
    ]


@pytest.fixture
def memory_store() -> Iterator[AbstractFileSystem]:
    store = fsspec.filesystem("memory")
    yield store
    store.rm("/bucket", recursive=True)


def test_pdfs_of_a_store(memory_store: AbstractFileSystem) -> None:
    blocks = [{"page": 1, "box": [0, 0, 1, 1], "type": "text", "text": "given"}]
    files = {"a.pdf": GOOD, "b.pdf": GOOD[:-20], "x/c.pdf": GOOD}
    files["x/c.blocks.json"] = json.dumps(blocks).encode()
    for name, data in files.items():
        memory_store.pipe_file(f"/bucket/docs/{name}", data)
    before = _shards("pdf=memory://bucket/docs")
    rows, losses = read("pdf=memory://bucket/docs")
    assert (items(rows["docs"]), items(rows["x"])) == (["fine"], ["given"])
    assert [loss.sample_id for loss in losses["docs"]] == ["b"]
    memory_store.pipe_file("/bucket/docs/x/c.blocks.json", b"[]")
    after = _shards("pdf=memory://bucket/docs")
    assert [key for key in after if after[key] != before[key]] == ["x"]


def test_whatever_is_damaged_every_pdf_is_a_sample_or_accounted_for(tmp_path: Path) -> None:
    chance = random.Random(5)
    image = jpeg_picture(jpeg(200, 10, 10), (50, 400, 120, 80), "/Decode [1 0 1 0 1 0]")
    sound = pdf([Page(lines(["some", "words"], 50, 700), [image]), Page(text("more", 50, 700))], "/Title (T)")
    files = {}
    for number in range(150):
        data = bytearray(sound)
        for _ in range(chance.choice([1, 1, 5])):
            at = chance.randrange(len(data))
            data[at : at + chance.choice([1, 1, 1, 9])] = chance.randbytes(chance.choice([1, 1, 1, 9]))
        files[f"{number}.pdf"] = bytes(data)
    rows, losses = read(files_in(tmp_path, files))
    read_ids = {row["sample_id"] for row in rows["docs"]}
    lost_ids = {loss.sample_id for loss in losses["docs"]}
    assert sorted([*read_ids, *map(str, lost_ids)]) == sorted(name.removesuffix(".pdf") for name in files)
    assert {loss.kind for loss in losses["docs"]} == {"unreadable_pdf"}
    assert len(read_ids) > 20
    assert len(lost_ids) > 20


def test_an_image_of_an_unheard_of_packing_is_an_error_row(tmp_path: Path) -> None:
    image = jpeg_picture(jpeg(1, 2, 3), (50, 400, 120, 80))
    image.dictionary = image.dictionary.replace("/DCTDecode", "/D#b8CT")
    rows, _ = read(files_in(tmp_path, {"a.pdf": pdf([Page(text("fine", 50, 700), [image])])}))
    assert rows["docs"][1]["text_content"] == "fine"
    assert str(rows["docs"][2]["materialize_error"]).startswith("unreadable image: ")
