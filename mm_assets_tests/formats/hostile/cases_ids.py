"""Sample ids that are missing, odd, or taken."""

from __future__ import annotations

from typing import Any

from mm_assets_tests.formats.hostile.outcomes import JPG, PNG, Case, Lost, Rejected, Sample
from mm_assets_tests.formats.hostile.shards import Entry, document, file

FIELD = {"sample_id_field": "sample_id"}


def stated(name: str, *ids: str) -> Case:
    """Ids that come out as they are, one sample each."""
    return Case(name, [document(f"n{n}", sample_id=i) for n, i in enumerate(ids)], [Sample(i) for i in ids])


STATED = [
    stated("id-empty", ""),
    stated("id-of-300-characters", "漢" * 300, "漢" * 299 + "字"),
    stated("id-with-dots", "a.b", "a.b.json", ".", "..", "...", "trailing."),
    stated("id-with-slashes", "/a/b", "a//b", "a/../b", "../../etc/passwd", "/"),
    stated("id-url", "https://ex.com/a?b=c&d=%20#e", "https%3A%2F%2Fex.com"),
    stated("id-emoji", "😀🧭", "\U0001f468\u200d\U0001f469\u200d\U0001f466"),
    stated("id-of-two-normal-forms", "caf\u00e9", "cafe\u0301"),
    stated("id-with-odd-beginning", "_x", ".x", "-x", "~x", "__init__", " x", "=x"),
    stated("id-of-control-characters", "a\0b", "a\nb", "a\tb", "\ufeff", "\u2028"),
    stated("id-of-two-cases", "A", "a", "ß", "SS"),
    stated("id-that-looks-like-null", "null", "None", "0", "-1", "NaN"),
    Case("id-from-the-name", [document("dir.v1/b.a.d")], [Sample("dir.v1/b.a.d")]),
    Case("id-number-without-field", [document(sample_id=5)], [Sample(said={"fields": {"sample_id": 5}})]),
    Case("id-null-without-field", [document(sample_id=None)], [Sample(said={"fields": {"sample_id": None}})]),
    Case(
        "id-number", [document(sample_id=7)], [Sample("7", said={"fields": {"sample_id": 7}})], options=FIELD
    ),
    Case(
        "id-object",
        [document(sample_id={"a": ["ü"]})],
        [Sample('{"a": ["ü"]}', said={"fields": {"sample_id": {"a": ["ü"]}}})],
        options=FIELD,
    ),
    Case(
        "id-missing",
        [document(url="u")],
        [Lost("bad_sample_id", "field 'sample_id' (sample_id_field) is missing")],
        options=FIELD,
    ),
    Case(
        "id-null",
        [document(sample_id=None)],
        [Lost("bad_sample_id", "field 'sample_id' (sample_id_field) is missing")],
        options=FIELD,
    ),
    Case(
        "id-missing-among-others",
        [document("x", url="u"), document("y", sample_id="y")],
        [Lost("bad_sample_id", "field 'sample_id'", "x", "x.json"), Sample("y")],
        options=FIELD,
    ),
]


def with_image(key: str, data: bytes, sample_id: str) -> list[Entry]:
    return [
        file(f"{key}.json", {"sample_id": sample_id, "texts": [None, "t"], "images": [f"{key}.png", None]}),
        file(f"{key}.png", data),
    ]


def twin(sample_id: str, *args: Any, **more: Any) -> Rejected:
    """The later of two samples with one id."""
    return Rejected(
        "duplicate_id", f"sample id {sample_id!r} occurs twice in this shard", sample_id, *args, **more
    )


IMAGE_AND_TEXT = [(-1, "metadata"), (0, "image"), (1, "text")]
FIRST = Sample("same", {1: "t"}, {0: PNG})

TAKEN = [
    Case(
        "twins-adjacent",
        [*with_image("a", PNG, "same"), *with_image("b", JPG, "same")],
        [FIRST, twin("same", IMAGE_AND_TEXT, "b.json")],
    ),
    Case(
        "twins-apart",
        [*with_image("a", PNG, "same"), document("mid"), *with_image("b", JPG, "same"), document("end")],
        [FIRST, Sample("mid"), twin("same", IMAGE_AND_TEXT, "b.json"), Sample("end")],
    ),
    Case(
        "triplets",
        [document(key, sample_id="same") for key in "abc"],
        [Sample("same"), twin("same", member="b.json"), twin("same", member="c.json")],
    ),
    Case("twins-equal-in-every-byte", [document(), document()], [Sample(), twin("bad")]),
    Case(
        "twins-in-two-folders",
        [document("a/x", sample_id="x"), document("b/x", sample_id="x")],
        [Sample("x"), twin("x", member="b/x.json")],
    ),
    Case("no-twins-in-two-folders", [document("a/x"), document("b/x")], [Sample("a/x"), Sample("b/x")]),
    Case(
        "twin-by-its-name",
        [document("a", sample_id="b"), document("b")],
        [Sample("b"), twin("b", member="b.json")],
    ),
    Case("twin-of-a-neighbour", [document(sample_id="before")], [twin("before")]),
    Case(
        "twin-of-a-refused-sample",
        [file("x.json", b"{"), document("y", sample_id="x")],
        [Lost("bad_json", "not JSON", "x", "x.json"), Sample("x")],
    ),
    Case(
        "twin-that-is-a-refused-sample",
        [document("y", sample_id="x"), file("x.json", b"{")],
        [Sample("x"), Lost("bad_json", "not JSON", "x", "x.json")],
    ),
    Case(
        "twin-of-a-sample-with-an-error",
        [file("a.json", {"sample_id": "x", "images": ["gone.png"]}), document("b", sample_id="x")],
        [
            Sample(
                "x", {}, {0: None}, said={"lengths": {"texts": None}}, faults={0: "missing member 'gone.png'"}
            ),
            twin("x", member="b.json"),
        ],
    ),
    Case(
        "twin-with-an-error",
        [
            document("a", sample_id="x"),
            file("b.json", {"sample_id": "x", "images": ["gone.png"], "texts": []}),
        ],
        [Sample("x"), twin("x", [(-1, "metadata"), (0, "image")], "b.json")],
    ),
    Case(
        "twin-by-json-suffix",
        [document("x"), file("x.JSON", {"texts": ["t"], "images": [None]})],
        [Sample("x"), twin("x", member="x.JSON")],
    ),
    Case(
        "id-of-another-shard",
        [document("x"), document("y")],
        [
            Rejected("duplicate_id", "sample id 'x' is already in another shard", "x", member="x.json"),
            Sample("y"),
        ],
        options={"taken_ids": {"x", "z"}},
    ),
]

CASES = [*STATED, *TAKEN]
