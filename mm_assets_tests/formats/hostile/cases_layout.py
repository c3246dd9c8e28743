"""Jsons of our own layout, written by someone else: types, bookkeeping and locators that are not to be
trusted.
"""

from __future__ import annotations

import base64
import json
import pickle
from typing import Any

import pyarrow as pa

from mm_assets_tests.formats.hostile.outcomes import JSON, PNG, Case, Lost, Rejected, Sample, neighbour
from mm_assets_tests.formats.hostile.shards import Entry, file

ROWS: dict[str, Any] = {"metadata": {}, "text": {}, "image": {}}


def stated(fields: list[pa.Field]) -> str:
    """Types of passthrough columns as the layout states them."""
    return base64.b64encode(pa.schema(fields).serialize()).decode()


def own(
    fields: list[pa.Field], metadata: dict[str, Any] | None = None, key: str = "bad", **more: Any
) -> Entry:
    """A sample with one text, whose json states the types of its passthrough columns."""
    payload = {
        "sample_id": key,
        "texts": ["t"],
        "images": [None],
        "_row_extra": {"text": [None], "image": [None], "metadata": metadata or {}},
        "_row_errors": [],
        "_mm_assets": {"schema": stated(fields), "refs": [], "rows": ROWS},
    }
    return file(f"{key}.json", {**payload, **more})


def edited(name: str, words: str, kind: str = "bad_layout", **fields: Any) -> Case:
    """A json of the layout with some fields replaced; it is refused."""
    payload = {"texts": ["t"], "images": [None], "_row_extra": {}, **fields}
    return Case(name, [file("bad.json", payload)], [Lost(kind, words)])


def bookkeeping(name: str, words: str = "'_mm_assets' does not fit", **parts: Any) -> Case:
    """A json whose bookkeeping is not as its sample; it is refused."""
    entry = own([pa.field("x", pa.string())])
    payload = json.loads(entry.data)
    payload["_mm_assets"].update(parts)
    return Case(name, [file("bad.json", payload)], [Lost("bad_layout", words)])


def misfit(name: str, fields: list[pa.Field], metadata: dict[str, Any], words: str) -> Case:
    """Values that are not of the types that their own json states."""
    return Case(name, [own(fields, metadata)], [Rejected("bad_layout", words)])


READ = [
    Case(
        "layout-with-extras",
        [
            file(
                "bad.json",
                {
                    "sample_id": "bad",
                    "texts": ["t", None],
                    "images": [None, "1.png"],
                    "_row_extra": {
                        "text": [{"lang": "en"}, None],
                        "image": [None, {"width": 5}],
                        "metadata": {"url": "u"},
                    },
                },
            ),
            file("bad.1.png", PNG),
        ],
        [
            Sample(
                images={1: PNG},
                extras={"url": "u"},
                item_extras={("text", 0): {"lang": "en"}, ("image", 1): {"width": 5}},
            )
        ],
        {"lang": pa.string(), "width": pa.int64(), "url": pa.string()},
    ),
    Case(
        "stated-types",
        [own([pa.field("x", pa.int8()), pa.field("y", pa.string())], {"x": 5, "y": "ü"})],
        [Sample(extras={"x": 5, "y": "ü"}, refs={})],
        {"x": pa.int8(), "y": pa.string()},
    ),
    Case(
        "stated-types-of-two-kinds",
        [own([pa.field("x", pa.int8())], {"x": 5}, "a"), own([pa.field("x", pa.string())], {"x": "5"}, "b")],
        [Sample("a", extras={"x": 5}, refs={}), Sample("b", extras={"x": "5"}, refs={})],
        {"x": JSON},
    ),
]

REFUSED = [
    edited("layout-text-extras-misaligned", "_row_extra.text does not align", _row_extra={"text": []}),
    edited("layout-extras-where-no-item-is", "where there is no item", _row_extra={"image": [{"a": 1}]}),
    edited("layout-extras-no-object", "no object", _row_extra={"text": [[1]]}),
    edited("layout-metadata-no-object", "_row_extra.metadata: no object", _row_extra={"metadata": [1]}),
    edited("layout-texts-no-list", "'texts' is no list", texts="t"),
    edited("layout-errors-no-list", "_row_errors is no list", _row_errors={"a": 1}),
    edited(
        "layout-error-of-no-item",
        "no item has this modality",
        _row_errors=[{"modality": "video", "position": 1}],
    ),
    edited(
        "layout-error-far-away",
        "no item has this modality",
        _row_errors=[{"modality": "text", "position": 2**40}],
    ),
    edited(
        "layout-error-no-text",
        "error and content type are texts",
        _row_errors=[{"modality": "text", "position": 1, "materialize_error": 5}],
    ),
    edited("layout-id-no-string", "'sample_id' is no string", "bad_sample_id", sample_id=5),
    edited("layout-id-null", "'sample_id' is no string", "bad_sample_id", sample_id=None),
    edited("bookkeeping-empty", "'_mm_assets' does not fit", _mm_assets={}),
    edited("bookkeeping-no-object", "'_mm_assets' does not fit", _mm_assets=5),
    edited(
        "refused-with-a-reason",
        "no member of key 'bad'",
        "missing_modality",
        _mm_assets={"refused": ["missing_modality", "no member of key 'bad'", None]},
    ),
    edited(
        "refused-as-a-pdf",
        "bad.pdf: encrypted",
        "unreadable_pdf",
        _mm_assets={"refused": ["unreadable_pdf", "bad.pdf: encrypted", None]},
    ),
    edited(
        "refused-for-no-known-reason",
        "refuses the sample, and does not say why",
        _mm_assets={"refused": ["bad luck", "x", None]},
    ),
    edited(
        "refused-with-no-text-for-a-locator", "does not say why", _mm_assets={"refused": ["bad_json", "x", 5]}
    ),
    bookkeeping("schema-that-is-junk", schema="AAAA"),
    bookkeeping("schema-that-is-pickle", schema=base64.b64encode(pickle.dumps([1])).decode()),
    bookkeeping("refs-null", refs=None, rows={**ROWS, "text": {"0": {"ref": 0}}}),
    bookkeeping("ref-beyond-the-list", rows={**ROWS, "text": {"0": {"ref": 99}}}),
    edited(
        "layout-error-beyond-the-longest-list",
        "no item has this modality",
        _row_errors=[{"modality": "text", "position": 10**6}],
    ),
    edited(
        "layout-lengths-beyond-the-longest-list",
        "_source: field 'texts' had 1000001 entries, at most 1000000",
        _row_extra={"metadata": {"_source": {"lengths": {"texts": 10**6 + 1}}}},
    ),
    bookkeeping("patch-of-no-item", rows={**ROWS, "text": {"7": {"ref": 0}}}),
    bookkeeping("patch-no-object", rows={**ROWS, "text": {"0": 5}}),
    bookkeeping("bytes-no-base64", rows={**ROWS, "text": {"0": {"binary_content": "%"}}}),
    Case("field-of-no-column", [own([], new=1)], [Lost("bad_layout", "field 'new' is in no column")]),
    Case("extra-of-no-column", [own([], {"new": 1})], [Lost("bad_layout", "field 'new' is in no column")]),
    Case(
        "column-named-as-a-reserved-one",
        [own([pa.field("position", pa.int8())], {"position": 1})],
        [Lost("bad_layout", "column names are not unique")],
    ),
    Case(
        "column-twice",
        [own([pa.field("x", pa.int8()), pa.field("x", pa.int8())], {"x": 1})],
        [Lost("bad_layout", "column names are not unique")],
    ),
    Case(
        "fixed-size-type-too-wide",
        [own([pa.field("x", pa.list_(pa.int8(), 2**20))])],
        [Lost("bad_layout", "is wider than")],
    ),
    Case(
        "fixed-size-types-too-wide-together",
        [own([pa.field("x", pa.list_(pa.list_(pa.int8(), 1000), 1000))])],
        [Lost("bad_layout", "is wider than")],
    ),
    misfit(
        "text-for-an-integer",
        [pa.field("x", pa.int64())],
        {"x": "no"},
        "sample 'bad': Could not convert 'no'",
    ),
    misfit("integer-too-large", [pa.field("x", pa.int8())], {"x": 1000}, "sample 'bad': "),
    misfit("object-for-a-list", [pa.field("x", pa.list_(pa.int8()))], {"x": {"a": 1}}, "sample 'bad': "),
    misfit(
        "type-without-json-form",
        [pa.field("x", pa.dense_union([pa.field("a", pa.int8())]))],
        {},
        "cannot be written: ",
    ),
    misfit("null-where-none-may-be", [pa.field("x", pa.int8(), nullable=False)], {"x": 1}, "sample 'bad': "),
]


def located(name: str, ref: Any, words: str | None = None, image: bytes | None = None) -> Case:
    """An image without bytes and without error: its locator says where they are, which is followed below the
    root only.

    ``ref`` None: it has no locator either.
    """
    refs = [] if ref is None else [ref if isinstance(ref, str) else json.dumps(ref)]
    rows = {**ROWS, "image": {"1": {"ref": 0}} if refs else {}}
    entry = own(
        [],
        texts=["t", None],
        images=[None, None],
        _row_extra={"text": [None, None], "image": [None, None], "metadata": {}},
        _row_errors=[{"modality": "image", "position": 1, "materialize_error": None}],
        _mm_assets={"schema": stated([]), "refs": refs, "rows": rows},
    )
    faults = {} if words is None else {1: words}
    sample = Sample(images={1: image}, faults=faults, types={1: None}, refs=dict(enumerate(refs, 1)))
    return Case(name, [entry], [sample])


BEFORE = neighbour("before")[1]
OUTSIDE = "is outside the configured roots"

LOCATORS = [
    located(
        "image-without-bytes-and-locator",
        None,
        "missing content: an image without bytes and without a locator",
    ),
    located(
        "locator-of-a-picture-of-the-shard", {"path": "shard.tar", "member": BEFORE.name}, image=BEFORE.data
    ),
    located("locator-absolute", {"path": "/etc/passwd"}, f"'/etc/passwd' {OUTSIDE}"),
    located(
        "locator-of-a-device",
        {"path": "/dev/zero", "byte_offset": 0, "byte_size": 10},
        f"'/dev/zero' {OUTSIDE}",
    ),
    located(
        "locator-that-climbs",
        {"path": "../../../../../../etc/passwd"},
        f"'../../../../../../etc/passwd' {OUTSIDE}",
    ),
    located("locator-file-url", {"path": "file:///etc/passwd"}, f"'file:///etc/passwd' {OUTSIDE}"),
    located(
        "locator-http-url", {"path": "http://127.0.0.1:9/x.png"}, f"'http://127.0.0.1:9/x.png' {OUTSIDE}"
    ),
    located(
        "locator-of-chained-file-systems",
        {"path": "simplecache::file:///etc/passwd"},
        f"'simplecache::file:///etc/passwd' {OUTSIDE}",
    ),
    located("locator-of-the-root", {"path": "."}, "failed to read .: not a regular file"),
    located(
        "locator-of-no-picture",
        {"path": "shard.tar", "byte_offset": 0, "byte_size": 600},
        "the source_ref names bytes that are no",
    ),
    located(
        "locator-beyond-the-file",
        {"path": "shard.tar", "byte_offset": 0, "byte_size": 2**61},
        "shard.tar: range 0+23058430092136",
    ),
    located(
        "locator-negative",
        {"path": "shard.tar", "byte_offset": -5, "byte_size": 5},
        "source_ref: byte_offset is no number of bytes",
    ),
    located("locator-of-a-number", {"path": 5}, "source_ref: path is no string: 5"),
    located("locator-of-nothing", {"path": ""}, "missing path"),
    located("locator-that-is-no-json", "junk", "Expecting value"),
    located("locator-of-no-object", "[1]", "source_ref must be a JSON object"),
    located("locator-of-a-missing-file", {"path": "gone.tar"}, "failed to read gone.tar: no such file"),
    located(
        "locator-of-a-missing-member",
        {"path": "shard.tar", "member": "gone.png"},
        "missing member 'gone.png'",
    ),
]

CASES = [*READ, *REFUSED, *LOCATORS]
