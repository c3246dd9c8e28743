"""Loops over tars that readers paste: they yield each item of each layout, also two of one position."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import webdataset as wds
from PIL import Image

from mm_assets_tests.cli.commands import ok
from mm_assets_tests.docs.pages import README, runnable
from mm_assets_tests.docs.test_notebook import NOTEBOOK
from mm_assets_tests.formats.datasets import read
from mm_assets_tests.formats.parquet_of_others import (
    IMAGE,
    PICTURES,
    curator,
    curator_rows,
    documents,
    image,
    interleaved,
)
from mm_assets_tests.formats.raw_tars import make_tar

P0, P1, P2 = PICTURES[:3]
_TAR = "demo/storage/webdataset/web-00000.tar"


def parallel_lists(folder: Path) -> None:
    document = {"texts": ["a", None, "both"], "images": [None, "d.1.png", "d.2.png"]}
    make_tar(folder / "raw.tar", [("d.json", document), ("d.1.png", P0), ("d.2.png", P1)])


def pairs(folder: Path) -> None:
    make_tar(
        folder / "raw.tar", [("0.jpg", P0), ("0.txt", b"c"), ("1.png", P1), ("1.json", {"caption": "d"})]
    )


def hugging_face(folder: Path) -> None:
    columns = interleaved([["x", "y"], ["z"]], [[image(0), None], [image(1), image(2)]])
    documents(folder / "raw.parquet", columns)


def image_and_caption(folder: Path) -> None:
    columns = {"image": (IMAGE, [image(0), image(1)]), "caption": (pa.string(), ["c", "d"])}
    documents(folder / "raw.parquet", columns)


def image_and_texts(folder: Path) -> None:
    columns = {"image": (IMAGE, [image(0)]), "texts": (pa.list_(pa.string()), [["c", "d"]])}
    documents(folder / "raw.parquet", columns)


def rows_of_items(folder: Path) -> None:
    curator(folder / "raw.parquet", curator_rows("0", "x", P0, "y", P1), [])


def json_lines(folder: Path) -> None:
    make_tar(folder / "raw.images.tar", [("p.png", P0)])
    (folder / "raw.jsonl").write_text(json.dumps({"texts": ["t"], "images": ["p.png"]}) + "\n")


LAYOUTS = [
    parallel_lists, pairs, hugging_face, image_and_caption, image_and_texts, rows_of_items, json_lines,
]  # fmt: skip


def pixels(item: Any) -> Any:
    """A text as it is; of an image its size and pixels, however it was opened."""
    if isinstance(item, bytes):
        item = Image.open(io.BytesIO(item))
    return item if isinstance(item, str) else (item.size, item.convert("RGB").tobytes())


@pytest.fixture(scope="module", params=LAYOUTS, ids=lambda layout: layout.__name__)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``webdataset/raw.tar`` of a layout."""
    make: Callable[[Path], None] = request.param
    folder = tmp_path_factory.mktemp("made")
    (folder / "raw").mkdir()
    make(folder / "raw")
    ok("convert", folder / "raw", folder / "webdataset", "--to", "webdataset")
    return folder


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [row for row in read("webdataset", folder / "webdataset").to_pylist() if row["position"] >= 0]


def contents(folder: Path) -> dict[str, list[Any]]:
    """By sample id, the texts and pictures that the rows hold."""
    found: dict[str, list[Any]] = {}
    for row in rows_of(folder):
        items = found.setdefault(row["sample_id"], [])
        items.append(pixels(row["text_content"] if row["modality"] == "text" else row["binary_content"]))
    return found


def test_the_loop_of_the_readme(made: Path) -> None:
    (block,) = [block for block in runnable(README) if _TAR in block.code]
    found: dict[str, list[Any]] = {}
    code = block.code.replace(_TAR, str(made / "webdataset" / "raw.tar"))
    exec(f"{code}    found[document['sample_id']] = items\n", {"found": found})  # noqa: S102 (our own page)
    assert {key: [pixels(item) for item in items] for key, items in found.items()} == contents(made)


def test_the_loop_of_the_notebook(made: Path) -> None:
    sources = ["".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text())["cells"]]
    (cell,) = [source for source in sources if 'document["images"]' in source]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(cell, {"wds": wds, "folder": made})  # noqa: S102 (our own page)
    lines = [line.split(maxsplit=1) for line in printed.getvalue().splitlines() if line.startswith(" ")]
    shown = [(int(position), "image" if item.startswith("picture of ") else item) for position, item in lines]
    assert shown == [(row["position"], row["text_content"] or "image") for row in rows_of(made)]
