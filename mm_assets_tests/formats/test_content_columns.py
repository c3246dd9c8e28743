"""Columns that look like texts or images, by names, types and values of JSON."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from mm_assets.formats.reports import content_columns, string_leaves, untaken, untaken_lines
from mm_assets.model.json_codec import json_field

S, BLOB = pa.string(), pa.binary()
IMAGE = pa.struct([("bytes", BLOB), ("path", S)])


def structs(**fields: pa.DataType) -> pa.DataType:
    return pa.list_(pa.struct(list(fields.items())))


@pytest.mark.parametrize(
    ("columns", "texts", "images"),
    [
        ({"id": S, "question": S, "answer": pa.large_string()}, ["question", "answer"], []),
        ({"split_7": S, "caption": pa.list_(S)}, ["caption"], []),
        ({"label": S, "caption": S}, ["caption", "label"], []),
        ({"conversations": structs(**{"from": S, "value": S})}, ["conversations"], []),
        ({"messages": structs(role=S, content=S)}, ["messages"], []),
        ({"annotations": structs(bbox=pa.list_(pa.float32()), text=S)}, ["annotations"], []),
        ({"alt": pa.dictionary(pa.int8(), S)}, ["alt"], []),
        ({"TEXT": S, "URL": S, "image_caption": S, "captionEn": S, "描述": S},
         ["TEXT", "image_caption", "captionEn", "描述"], []),
        ({"id": S, "image_id": S, "url": S, "file_name": S, "fileName": S, "sha256": S, "md5": S,
          "license": S, "caption_id": S, "answer_type": S, "uids": pa.list_(S), "general_metadata": S,
          "exif": S}, [], []),
        ({"meta": structs(url=S, license=S), "n": pa.int64(), "emb": pa.list_(pa.float32())}, [], []),
        ({"jpg": BLOB, "img": IMAGE, "image_list": pa.list_(IMAGE)}, [], ["jpg", "img", "image_list"]),
        ({"data": BLOB, "audio": IMAGE, "sha256": BLOB, "npy": BLOB}, [], ["data"]),
        ({"caption": BLOB, "data": BLOB, "text": IMAGE}, ["caption"], ["caption", "data", "text"]),
        ({"image_url": S, "img": S, "photo": pa.list_(S), "image_hash": S},
         [], ["image_url", "img", "photo"]),
    ],
)  # fmt: skip
def test_by_names_and_types(columns: dict[str, pa.DataType], texts: list[str], images: list[str]) -> None:
    found = content_columns([pa.field(name, type_) for name, type_ in columns.items()], {})
    assert (list(found.get("text", ())), list(found.get("image", ()))) == (texts, images)


@pytest.mark.parametrize(
    ("name", "value", "is_text"),
    [
        ("qa", [{"q": "a"}], True),
        ("objects", [[1, 2], [3, 4]], False),
        ("info", {"license": "x", "url": "y", "size": [1, 2]}, False),
        ("info", {"license": "x", "caption": {"en": "y"}}, True),
        ("meta", {"caption": "y"}, True),
        ("points", [], False),
    ],
)
def test_json_by_its_values(name: str, value: Any, is_text: bool) -> None:
    found = content_columns([json_field(name)], {name: string_leaves(value)})
    assert found == ({"text": (name,)} if is_text else {})


def test_deep_or_long_values_are_not_walked_to_the_end() -> None:
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    assert string_leaves(deep) == set()
    assert string_leaves([*range(1000), "x"]) == set()


def test_lines() -> None:
    columns = {"text": ("question", "a\nb\x1b[31m"), "image": ("jpg",)}
    assert untaken(columns, 3, 4) == {}
    assert untaken(columns, 3, 0) == {"image": ("jpg",)}
    lines = untaken_lines([untaken(columns, 0, 0), untaken({"text": ("answer",)}, 0, 9), {}], 12)
    assert lines == [
        "no text was taken from 2 of 12 shards; columns that look like text: question, a\\nb\\x1b[31m, "
        "answer; see docs/raw_shards.md",
        "no image was taken from 1 of 12 shards; columns that look like images: jpg; see docs/raw_shards.md",
    ]
    many = {"text": tuple(f"text_{number}" for number in range(20))}
    assert untaken_lines([many], 0)[0].endswith("text_7, …; see docs/raw_shards.md")
    assert "no text was taken; columns" in untaken_lines([many], 0)[0]
