"""Raw samples that are odd in every way that is allowed, and their way through all formats."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from PIL import Image

from mm_assets.interleaved import InterleavedBatch
from mm_assets_tests.formats.any_tables import same
from mm_assets_tests.formats.datasets import read, write
from mm_assets_tests.formats.images.pictures import KINDS
from mm_assets_tests.formats.images.tiff_tools import tiff_of

CHAIN = ("parquet", "webdataset", "lance", "parquet")


def through_all(folder: Path, source: pa.Table, policy: str = "warn") -> pa.Table:
    """WDS -> Parquet -> WDS -> Lance -> Parquet; asserts that each step holds the same table."""
    previous: Any = InterleavedBatch(source, (), "part")
    table = source
    for step, kind in enumerate(CHAIN):
        place = folder / f"{step}-{kind}"
        write(kind, place, previous, on_materialize_error=policy, materialize=False)
        table = read(kind, place)
        same(table, source)
        previous = InterleavedBatch(table, (), "part")
    return table


def sixteen_bit_tiff() -> bytes:
    out = io.BytesIO()
    Image.frombytes("I;16", (9, 7), bytes(range(126))).save(out, "TIFF")
    return out.getvalue()


def hostile() -> Iterator[tuple[str, Any]]:
    """Members of one tar. Order is mixed up on purpose: images after and before their json."""
    pictures = [(ext, make(number)) for number, (ext, make) in enumerate(KINDS)]
    yield from (
        (f"many.{n}.{pictures[n % len(pictures)][0]}", pictures[n % len(pictures)][1]) for n in range(40)
    )
    many = [f"many.{n}.{pictures[n % len(pictures)][0]}" for n in range(40)]
    yield "many.json", {"texts": [None] * 40, "images": many, "n": 1}
    yield "none.json", {"texts": ["only text"], "images": [], "n": 2.5}
    yield "bare.json", {}
    yield "a/x.json", {"texts": [], "images": []}
    yield "b/x.JSON", {"texts": None, "images": None}
    yield "c.json", {"texts": "no list", "images": {"no": "list"}, "sample_id": 5}
    yield (
        "d.json",
        {
            "texts": ["", None, "x", None, None],
            "images": [None, "d.png", None],
            "sample_id": "dots.in.it/ü " + "x" * 300,
        },
    )
    yield "d.png", pictures[0][1]
    yield (
        "e.json",
        {
            "texts": [5, {"a": [1, None]}, ["x"], True, 1.5, "s", None, float("nan")],
            "images": [None, 7, "", {"k": 1}, "nowhere.png", False, None, ["e"]],
            "nested": {"a": [1, {"b": None}], "é": "ü"},
            "when": "2024-05-01T00:00:00.000001+02:00",
            "big": 2**53 + 1,
            "huge": 10**40,
            "nan": float("nan"),
            "inf": float("-inf"),
            "null": None,
            "mixed": "text",
        },
    )
    yield (
        "reserved.json",
        {
            "texts": ["t"],
            "images": [None],
            "position": 5,
            "modality": {"m": 1},
            "content_type": None,
            "text_content": "tc",
            "binary_content": [1],
            "source_ref": "sr",
            "materialize_error": "me",
            "_source": {"token": "mine"},
            "_mm_assets": {"schema": 1},
            "_row_errors": [{"position": 0}],
            "_row_extra": "no dict",
            "image_members": ["x"],
            "__arrow__": 1,
            "obj": {"__arrow__": {"__arrow__": "x"}},
            "a.b": 1,
            "": "empty name",
            "*": 1,
            "_rowid": 5,
        },
    )
    yield (
        "extra.json",
        {"texts": ["t"], "images": [], "_row_extra": {"theirs": 1, "text": [None]}, "mixed": 1},
    )
    yield "lengths.json", {"texts": ["a", "b", None, None, None, None], "images": ["lengths.png"]}
    yield "lengths.png", pictures[1][1]
    yield (
        "deep/er/pdf.json",
        {
            "texts": [None, "t", None, None],
            "images": ["page_0_image_85", None, "page_1", "page_2_image_3"],
            "mixed": [1],
        },
    )
    yield "deep/er/pdf.tiff", tiff_of(3)
    yield "single.json", {"images": ["page_0"], "texts": [None]}
    yield "single.TIFF", sixteen_bit_tiff()
    yield "beside/s.json", {"images": ["i.png", "./i.png"], "texts": []}
    yield "beside/i.png", pictures[2][1]
    yield "key.json", {"images": ["1.jpg"], "texts": ["x", "y"]}
    yield "key.1.jpg", pictures[7][1]
    yield "last.json", {"texts": [], "images": [], "first seen": {"in": ["the last sample"]}, "null": None}
