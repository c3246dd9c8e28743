"""Jsons that cannot be read, and jsons that must come out exactly as odd as they went in."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from mm_assets_tests.formats.hostile.outcomes import JSON, PNG, Case, Lost, Sample
from mm_assets_tests.formats.hostile.shards import document, file

MUCH = "Größe 漢字 \U0001f9ed " * 200_000  # 5 MB of UTF-8
NO_IMAGES = {"lengths": {"images": None}}


def refused(name: str, data: bytes, kind: str, words: str) -> Case:
    return Case(name, [file("bad.json", data)], [Lost(kind, words)])


def preserved(
    name: str, text: str | bytes, columns: dict[str, Any], extras: dict[str, Any], said: Any = None
) -> Case:
    """One sample with the text ``t``; ``text`` is what else is in its json."""
    more = text.encode() if isinstance(text, str) else text
    data = b'{"texts": ["t"], "images": [null], ' + more + b"}"
    return Case(name, [file("bad.json", data)], [Sample(extras=extras, said=said)], columns)


def several(
    name: str, column: Any, values: list[Any], expected: list[Any], saids: dict[int, Any] | None = None
) -> Case:
    """Samples whose field ``f`` has values of different kinds; ``...`` leaves it out."""
    members = [
        document(f"bad{n}", **({} if value is ... else {"f": value})) for n, value in enumerate(values)
    ]
    samples = [
        Sample(f"bad{n}", extras={"f": value}, said=(saids or {}).get(n)) for n, value in enumerate(expected)
    ]
    return Case(name, members, samples, {"f": column})


BEYOND_FLOAT = ("1e400", "-1e400", "1E+309", "1e0000400", "9" * 400 + ".5", "9" * 250 + "e99", "1.8e308")

REFUSED = [
    *(
        refused(
            f"number-{literal:.10}-of-{len(literal)}",
            b'{"texts": [], "a": [{"b": %s}]}' % literal.encode(),
            "bad_json",
            "is larger than any float64",
        )
        for literal in BEYOND_FLOAT
    ),
    refused("cut", b'{"texts": [', "bad_json", "not JSON"),
    refused("trailing-comma", b'{"texts": ["t",]}', "bad_json", "not JSON"),
    refused("single-quotes", b"{'texts': []}", "bad_json", "not JSON"),
    refused("comment", b'{"texts": [] /* none */}', "bad_json", "not JSON"),
    refused("two-documents", b'{"texts": []}\n{"texts": []}', "bad_json", "not JSON"),
    refused("raw-newline-in-string", b'{"texts": ["a\nb"]}', "bad_json", "not JSON"),
    refused("raw-nul-in-string", b'{"texts": ["a\0b"]}', "bad_json", "not JSON"),
    refused("nul-after-the-end", b'{"texts": ["a"]}\0\0', "bad_json", "not JSON"),
    refused("empty", b"", "bad_json", "not JSON"),
    refused("only-spaces", b" \n\t ", "bad_json", "not JSON"),
    refused("duplicate-key", b'{"texts": ["a"], "texts": ["b"]}', "bad_json", "'texts' occurs twice"),
    refused("duplicate-key-inside", b'{"n": [{"a": 1, "a": 2}]}', "bad_json", "'a' occurs twice"),
    refused("deep-900", b'{"n": ' + b"[" * 900 + b"]" * 900 + b"}", "bad_json", "nested too deeply"),
    refused(
        "deep-100000", b'{"n": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "bad_json", "nested too deeply"
    ),
    refused("deep-objects", b'{"n":' * 900 + b"1" + b"}" * 900, "bad_json", "nested too deeply"),
    refused("integer-of-5000-digits", b'{"n": ' + b"9" * 5000 + b"}", "bad_json", "not JSON"),
    refused("utf16-with-mark", '{"texts": ["t"]}'.encode("utf-16"), "not_utf8", "not UTF-8"),
    refused("utf16-without-mark", '{"texts": ["t"]}'.encode("utf-16-le"), "bad_json", "not JSON"),
    refused("utf32", '{"texts": ["t"]}'.encode("utf-32"), "not_utf8", "not UTF-8"),
    refused("latin-1", '{"texts": ["Größe"]}'.encode("latin-1"), "not_utf8", "not UTF-8"),
    refused("overlong-utf8", b'{"texts": ["\xc0\x80"]}', "not_utf8", "not UTF-8"),
    refused("surrogates-as-utf8", b'{"texts": ["\xed\xa0\xbd\xed\xb8\x80"]}', "not_utf8", "not UTF-8"),
    refused("utf8-cut-in-a-character", '{"texts": ["ü"]}'.encode()[:13], "not_utf8", "not UTF-8"),
    refused("gzipped-json", b"\x1f\x8b\x08\0\0\0\0\0", "not_utf8", "not UTF-8"),
    refused("lone-surrogate", b'{"texts": ["a\\ud800b"]}', "lone_surrogate", "lone surrogate"),
    refused("lone-low-surrogate-in-key", b'{"\\udfff": 1}', "lone_surrogate", "lone surrogate"),
    refused(
        "surrogates-in-wrong-order", b'{"f": {"g": ["\\ude00\\ud83d"]}}', "lone_surrogate", "lone surrogate"
    ),
    refused("lone-surrogate-in-id", b'{"sample_id": "\\ud83d"}', "lone_surrogate", "lone surrogate"),
    refused("array", b'[{"texts": ["t"]}]', "not_an_object", "no object but list"),
    refused("number", b"1.5", "not_an_object", "no object but float"),
    refused("string", b'"{}"', "not_an_object", "no object but str"),
    refused("null", b"null", "not_an_object", "no object but NoneType"),
    refused("false", b"false", "not_an_object", "no object but bool"),
    refused("nan-alone", b"NaN", "not_an_object", "no object but float"),
]

PRESERVED = [
    Case(
        "byte-order-mark",
        [file("bad.json", b"\xef\xbb\xbf" + b'{"texts": ["t"], "images": [null]}')],
        [Sample()],
    ),
    preserved(
        "nan-and-infinity",
        '"a": NaN, "b": -Infinity',
        {"a": pa.float64(), "b": pa.float64()},
        {"a": float("nan"), "b": float("-inf")},
    ),
    preserved(
        "float-limits",
        '"a": 1.7976931348623157e308, "b": 1e-400, "c": "1e400", "d": 0e999',
        dict.fromkeys("abd", pa.float64()) | {"c": pa.string()},
        {"a": 1.7976931348623157e308, "b": 0.0, "c": "1e400", "d": 0.0},
    ),
    preserved(
        "nan-inside", '"a": [NaN, {"b": Infinity}]', {"a": JSON}, {"a": [float("nan"), {"b": float("inf")}]}
    ),
    preserved(
        "integers-beyond-2^53",
        '"a": 9007199254740993, "b": -9007199254740993',
        {"a": pa.int64(), "b": pa.int64()},
        {"a": 2**53 + 1, "b": -(2**53) - 1},
    ),
    preserved(
        "integer-limits",
        '"a": 9223372036854775807, "b": -9223372036854775807',
        {"a": pa.int64(), "b": pa.int64()},
        {"a": 2**63 - 1, "b": -(2**63) + 1},
    ),
    preserved(
        "integers-beyond-2^63",
        f'"a": {2**63}, "b": {-(10**40)}',
        {"a": JSON, "b": JSON},
        {"a": 2**63, "b": -(10**40)},
    ),
    preserved(
        "smallest-floats",
        '"a": 5e-324, "b": 1.7976931348623157e308, "c": 0.1',
        dict.fromkeys("abc", pa.float64()),
        {"a": 5e-324, "b": 1.7976931348623157e308, "c": 0.1},
    ),
    preserved(
        "paired-surrogates",
        '"a": "\\ud83d\\ude00", "\\ud83e\\udded": 1',
        {"a": pa.string(), "\U0001f9ed": pa.int64()},
        {"a": "😀", "\U0001f9ed": 1},
    ),
    preserved(
        "nul-characters",
        '"a": "x\\u0000y", "b\\u0000": [ "\\u0000" ]',
        {"a": pa.string(), "b\0": JSON},
        {"a": "x\0y", "b\0": ["\0"]},
    ),
    preserved(
        "nested-100-deep",
        '"a": ' + "[" * 100 + "]" * 100,
        {"a": JSON},
        {"a": json.loads("[" * 100 + "]" * 100)},
    ),
    preserved(
        "nested-nulls",
        '"a": [[null], [], {}, [null, [null, {"b": null}]]]',
        {"a": JSON},
        {"a": [[None], [], {}, [None, [None, {"b": None}]]]},
    ),
    preserved("empty-field-name", '"": 7, " ": 8', {"": pa.int64(), " ": pa.int64()}, {"": 7, " ": 8}),
    preserved(
        "odd-field-names",
        '"a.b": 1, "*": 2, "_rowid": 3, "a b": 4',
        dict.fromkeys(["a.b", "*", "_rowid", "a b"], pa.int64()),
        {"a.b": 1, "*": 2, "_rowid": 3, "a b": 4},
    ),
    preserved(
        "names-of-two-cases", '"a": 1, "A": "x"', {"a": pa.int64(), "A": pa.string()}, {"a": 1, "A": "x"}
    ),
    preserved(
        "100-fields",
        ", ".join(f'"f{n}": {n}' for n in range(100)),
        {f"f{n}": pa.int64() for n in range(100)},
        {f"f{n}": n for n in range(100)},
    ),
    preserved("null-field", '"a": null', {"a": pa.null()}, {}, {"nulls": ["a"]}),
    preserved(
        "reserved-names",
        '"position": 5, "modality": {"m": 1}, "content_type": null, "text_content": "tc", '
        '"binary_content": [1], "source_ref": "sr", "materialize_error": "no error"',
        {},
        {},
        {
            "fields": {
                "position": 5,
                "modality": {"m": 1},
                "content_type": None,
                "text_content": "tc",
                "binary_content": [1],
                "source_ref": "sr",
                "materialize_error": "no error",
            }
        },
    ),
    preserved(
        "field-named-source",
        '"_source": {"token": "mine", "lengths": {"texts": 9}}',
        {},
        {},
        {"fields": {"_source": {"token": "mine", "lengths": {"texts": 9}}}},
    ),
    preserved(
        "row-extra-of-others",
        '"_row_extra": {"theirs": 1, "text": [null]}',
        {"_row_extra": JSON},
        {"_row_extra": {"theirs": 1, "text": [None]}},
    ),
    preserved(
        "row-extra-that-is-text",
        '"_row_extra": "none", "_row_errors": [1]',
        {"_row_extra": pa.string(), "_row_errors": JSON},
        {"_row_extra": "none", "_row_errors": [1]},
    ),
    preserved(
        "bookkeeping-of-others",
        '"_mm_assets": {"schema": "x"}, "image_members": ["x"]',
        {"_mm_assets": JSON, "image_members": JSON},
        {"_mm_assets": {"schema": "x"}, "image_members": ["x"]},
    ),
    preserved(
        "codec-marks",
        '"a": {"__arrow__": {"__arrow__": "x"}}, "__arrow__": 1',
        {"a": JSON, "__arrow__": pa.int64()},
        {"a": {"__arrow__": {"__arrow__": "x"}}, "__arrow__": 1},
    ),
    preserved(
        "text-that-looks-like-json",
        '"a": "null", "b": "{\\"x\\": 1}", "c": "NaN"',
        dict.fromkeys("abc", pa.string()),
        {"a": "null", "b": '{"x": 1}', "c": "NaN"},
    ),
    Case(
        "huge-text",
        [document(texts=[MUCH], f=[MUCH[:1000]])],
        [Sample(texts={0: MUCH}, extras={"f": [MUCH[:1000]]})],
        {"f": JSON},
    ),
]

ACROSS_SAMPLES = [
    several(
        "field-first-in-the-last-sample",
        JSON,
        [..., ..., ..., {"in": ["the last"]}],
        [None, None, None, {"in": ["the last"]}],
    ),
    several("int-and-float", pa.float64(), [1, 2.5], [1.0, 2.5]),
    several("int-and-float-inexact", JSON, [2**53 + 1, 2.5], [2**53 + 1, 2.5]),
    several("int-and-text", JSON, [1, "1"], [1, "1"]),
    several("bool-and-int", JSON, [True, 1], [True, 1]),
    several(
        "text-list-object", JSON, ["null", [1, None], {"a": None}, 1.5], ["null", [1, None], {"a": None}, 1.5]
    ),
    several("null-and-missing", pa.int64(), [None, ..., 5], [None, None, 5], {0: {"nulls": ["f"]}}),
    several("null-in-all", pa.null(), [None, None], [None, None], {0: {"nulls": ["f"]}, 1: {"nulls": ["f"]}}),
]

SAMPLES_BESIDE_BAD_ONES = [
    Case(
        "fields-of-a-refused-sample-make-no-column",
        [file("bad.json", b'{"odd": 1, "texts": [}'), document("fine", f=2)],
        [Lost("bad_json", "not JSON"), Sample("fine", extras={"f": 2})],
        {"f": pa.int64()},
    ),
    Case(
        "all-kinds-in-one-shard",
        [
            file("b1.json", b"{"),
            file("b2.json", b'{"a": "\xff"}'),
            file("b3.json", b'{"a": "\\udc00"}'),
            file("b4.json", b"[]"),
            document("fine"),
            file("deep/b5.json", b""),
        ],
        [
            Lost("bad_json", "not JSON", "b1", "b1.json"),
            Lost("not_utf8", "not UTF-8", "b2", "b2.json"),
            Lost("lone_surrogate", "lone surrogate", "b3", "b3.json"),
            Lost("not_an_object", "no object", "b4", "b4.json"),
            Sample("fine"),
            Lost("bad_json", "not JSON", "deep/b5", "deep/b5.json"),
        ],
    ),
    Case(
        "image-of-a-refused-sample-is-unreferenced",
        [file("bad.json", b"{"), file("bad.png", PNG)],
        [Lost("bad_json", "not JSON")],
        notes={"unreferenced_members": ["bad.png"]},
    ),
]

CASES = [*REFUSED, *PRESERVED, *ACROSS_SAMPLES, *SAMPLES_BESIDE_BAD_ONES]
