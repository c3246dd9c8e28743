"""Lists of texts and images in every shape: what the rows cannot say of them is kept beside."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from mm_assets_tests.formats.hostile.outcomes import JPG, JSON, PNG, Case, Lost, Sample
from mm_assets_tests.formats.hostile.shards import Entry, document, file

IMAGES = [file("a.png", PNG), file("b.jpg", JPG)]


def lists(name: str, payload: dict[str, Any], sample: Sample, members: list[Entry] | None = None) -> Case:
    used = members or []
    return Case(name, [file("bad.json", payload), *used], [sample])


LISTS = [
    lists("no-items", {}, Sample(texts={}, said={"lengths": {"texts": None, "images": None}})),
    lists(
        "texts-missing", {"images": [None]}, Sample(texts={}, said={"lengths": {"texts": None, "images": 1}})
    ),
    lists("images-missing", {"texts": ["t"]}, Sample(said={"lengths": {"images": None}})),
    lists(
        "texts-null",
        {"texts": None, "images": ["a.png"]},
        Sample(texts={}, images={0: PNG}, said={"fields": {"texts": None}}),
        IMAGES[:1],
    ),
    lists("images-null", {"texts": ["t"], "images": None}, Sample(said={"fields": {"images": None}})),
    lists(
        "texts-no-list",
        {"texts": "t", "images": {"a": 1}},
        Sample(texts={}, said={"fields": {"texts": "t", "images": {"a": 1}}}),
    ),
    lists("lists-empty", {"texts": [], "images": []}, Sample(texts={})),
    lists(
        "lists-of-nulls",
        {"texts": [None, None], "images": [None] * 3},
        Sample(texts={}, said={"lengths": {"texts": 2, "images": 3}}),
    ),
    lists(
        "trailing-nulls",
        {"texts": ["t", None, None], "images": [None, "a.png", None, None]},
        Sample(images={1: PNG}, said={"lengths": {"texts": 3, "images": 4}}),
        IMAGES[:1],
    ),
    lists(
        "unequal-lengths",
        {"texts": ["t", "u", "v"], "images": ["a.png"]},
        Sample(texts={0: "t", 1: "u", 2: "v"}, images={0: PNG}, said={"lengths": {"images": 1}}),
        IMAGES[:1],
    ),
    lists(
        "long-gap",
        {"texts": ["t", *[None] * 3000, "u"], "images": [None] * 3001 + ["a.png"]},
        Sample(texts={0: "t", 3001: "u"}, images={3001: PNG}),
        IMAGES[:1],
    ),
    lists(
        "text-and-image-at-one-place",
        {"texts": ["t", "u"], "images": ["a.png", "b.jpg"]},
        Sample(texts={0: "t", 1: "u"}, images={0: PNG, 1: JPG}),
        IMAGES,
    ),
    lists(
        "texts-empty-and-blank",
        {"texts": ["", " ", "\n"], "images": [None] * 3},
        Sample(texts={0: "", 1: " ", 2: "\n"}),
    ),
    lists(
        "texts-no-strings",
        {"texts": [5, {"a": [1, None]}, ["x"], True, 1.5, "s", 2**70], "images": [None] * 7},
        Sample(
            texts={0: "5", 1: '{"a": [1, null]}', 2: '["x"]', 3: "true", 4: "1.5", 5: "s", 6: str(2**70)},
            values={0: 5, 1: {"a": [1, None]}, 2: ["x"], 3: True, 4: 1.5, 6: 2**70},
        ),
    ),
    lists(
        "text-nan",
        {"texts": [float("nan"), "t"], "images": [None, None]},
        Sample(texts={0: "NaN", 1: "t"}, values={0: float("nan")}),
    ),
    lists(
        "references-no-strings",
        {"texts": [], "images": [7, {"k": 1}, False, ["a.png"]]},
        Sample(
            texts={},
            images=dict.fromkeys(range(4)),
            tokens={0: 7, 1: {"k": 1}, 2: False, 3: ["a.png"]},
            said={"lengths": {"texts": 0}},
            faults=dict.fromkeys(range(4), "dangling reference: no member name: "),
        ),
    ),
    lists(
        "reference-empty",
        {"texts": ["t", None], "images": [None, ""]},
        Sample(images={1: None}, faults={1: "dangling reference: no member name: ''"}),
    ),
]

SHORT = {"settings": {"mm_assets.formats.webdataset.documents.MAX_POSITION": 5}}

LONG = [
    Case(
        "list-too-long-for-any-tar",
        [document(images=[None] * 1_000_001)],
        [Lost("bad_layout", "field 'images' has 1000001 entries, at most 1000000")],
    ),
    Case(
        "texts-too-long",
        [document(texts=["t"] * 6)],
        [Lost("bad_layout", "field 'texts' has 6 entries, at most 5")],
        **SHORT,
    ),
    Case(
        "texts-as-long-as-may-be",
        [document(texts=["t"] * 5, images=[None] * 5)],
        [Sample(texts=dict.fromkeys(range(5), "t"))],
        **SHORT,
    ),
    Case(
        "texts-of-the-layout-too-long",
        [document(texts=[None] * 6, _row_extra={})],
        [Lost("bad_layout", "field 'texts' has 6 entries, at most 5")],
        **SHORT,
    ),
]

LANG = {"per_text_fields": ["lang"]}
TWO = {"texts": ["t", None, "u"], "images": [None] * 3}
BOTH = {0: "t", 2: "u"}

PER_ITEM = [
    Case(
        "per-item-list",
        [document(**TWO, lang=["en", "de"])],
        [Sample(texts=BOTH, item_extras={("text", 0): {"lang": "en"}, ("text", 2): {"lang": "de"}})],
        {"lang": pa.string()},
        LANG,
    ),
    Case(
        "per-item-list-with-nulls",
        [document(**TWO, lang=["en", None, "de"])],
        [
            Sample(
                texts=BOTH,
                item_extras={("text", 0): {"lang": "en"}, ("text", 2): {"lang": "de"}},
                said={"per_item": {"lang": 3}},
            )
        ],
        {"lang": pa.string()},
        LANG,
    ),
    Case(
        "per-item-list-of-another-length",
        [document(**TWO, lang=["en", "de", "fr", "it"])],
        [Sample(texts=BOTH, extras={"lang": ["en", "de", "fr", "it"]})],
        {"lang": JSON},
        LANG,
    ),
    Case(
        "per-item-field-that-is-no-list",
        [document("ok", **TWO, lang=["en", "de"]), document(lang="en")],
        [
            Sample("ok", BOTH, item_extras={("text", 0): {"lang": "en"}, ("text", 2): {"lang": "de"}}),
            Lost("bad_layout", "per-item field 'lang' is no list"),
        ],
        {"lang": pa.string()},
        LANG,
    ),
    Case(
        "per-item-field-that-is-no-list-of-a-stated-id",
        [document("k", sample_id="stated", lang={"a": 1})],
        [Lost("bad_layout", "per-item field 'lang' is no list", "stated", "k.json")],
        options=LANG,
    ),
]

CASES = [*LISTS, *LONG, *PER_ITEM]
