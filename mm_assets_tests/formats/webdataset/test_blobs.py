"""Image bytes of rows in one buffer, whatever its size was expected to be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mm_assets.formats.images.tiff import split_frame
from mm_assets.formats.tar.scan import scan
from mm_assets.formats.webdataset import reader
from mm_assets.formats.webdataset.reader import BlobBuilder
from mm_assets.formats.webdataset.rows import ResolvedContent, Row
from mm_assets.model.errors import surplus_reference
from mm_assets_tests.formats.images.tiff_tools import grey_page, write_tiff
from mm_assets_tests.formats.raw_tars import make_tar

PNG = b"\x89PNG\r\n\x1a\n" + bytes(5000)
PAGES = write_tiff([grey_page(9, 7, bytes([shade]) * 63) for shade in (1, 2, 3)])
OTHER = write_tiff([grey_page(5, 4, bytes([shade]) * 20) for shade in (4, 5)])
SINGLE = write_tiff([grey_page(3, 3, bytes(9))])


@pytest.mark.parametrize("expected", [None, 0, 1, 1 << 20], ids=["measured", "nothing", "a byte", "too much"])
def test_values_lie_one_behind_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: int | None
) -> None:
    if expected is not None:
        monkeypatch.setattr(reader, "_expected_bytes", lambda rows: expected)
    tar = make_tar(
        tmp_path / "x.tar",
        [("p.png", PNG), ("pages.tiff", PAGES), ("other.tiff", OTHER), ("single.tiff", SINGLE)],
    )
    descriptor = os.open(tar, os.O_RDONLY)
    try:
        png, pages, other, single = scan(descriptor, "x.tar").members
        contents = [
            *(ResolvedContent(png), None, ResolvedContent(pages, 0, 3), ResolvedContent(pages, 2, 3)),
            *(
                ResolvedContent(other, 1, 2),
                ResolvedContent(pages, 1, 3),
                ResolvedContent(single, 0, 1),
                ResolvedContent(pages, 3, 4),
                ResolvedContent(png),
            ),
        ]
        rows = [Row(position, "image", content=content) for position, content in enumerate(contents)]
        rows.insert(2, Row(9, "image", binary=b"of the json"))
        builder = BlobBuilder(descriptor, "x.tar", {})
        values = builder.build(rows).to_pylist()
    finally:
        os.close(descriptor)
    assert values == [
        *(PNG, None, b"of the json", split_frame(PAGES, 0), split_frame(PAGES, 2)),
        *(split_frame(OTHER, 1), split_frame(PAGES, 1), SINGLE, None, PNG),
    ]
    assert [row.content_type for row in rows] == [
        "image/png",
        None,
        None,
        *["image/tiff"] * 5,
        None,
        "image/png",
    ]
    assert [row.error for row in rows if row.error] == [surplus_reference("pages.tiff", 3, 3, 4)]
    assert {name: (frames, references) for name, (_, frames, references) in builder.frames.items()} == {
        "pages.tiff": (3, 4),
        "other.tiff": (2, 2),
        "single.tiff": (1, 1),
    }


def test_no_rows(tmp_path: Path) -> None:
    assert BlobBuilder(-1, "x.tar", {}).build([]).to_pylist() == []
    assert BlobBuilder(-1, "x.tar", {}).build([Row(0, "text")]).to_pylist() == [None]
