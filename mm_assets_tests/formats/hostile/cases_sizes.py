"""Members over the limits on their size: not read, and said so."""

from __future__ import annotations

from mm_assets_tests.formats.hostile.outcomes import JPG, PNG, Case, Lost, Sample, neighbour, pictured
from mm_assets_tests.formats.hostile.pictures import grey_tiff, photograph
from mm_assets_tests.formats.hostile.shards import document, file, link

LIMIT = max(len(entry.data) for key in ("before", "after") for entry in neighbour(key)) + 1000
LARGE = photograph("BMP")
LARGEST = {"max_member_bytes": LIMIT}
TIFF = grey_tiff(2).ljust(LIMIT + 1, b"\0")
JSON_LIMIT = {"mm_assets.formats.webdataset.samples.MAX_JSON_BYTES": 400}
WORDS = f"oversized member 'bad.1.png': {len(LARGE)} bytes, at most {LIMIT}"

CASES = [
    Case(
        "image-over-the-limit",
        pictured(LARGE),
        [Sample(images={1: None}, faults={1: WORDS})],
        options=LARGEST,
    ),
    Case(
        "image-at-the-limit",
        pictured(LARGE),
        [Sample(images={1: LARGE})],
        options={"max_member_bytes": len(LARGE)},
    ),
    Case(
        "image-one-byte-over",
        pictured(LARGE),
        [Sample(images={1: None}, faults={1: "oversized member 'bad.1.png'"})],
        options={"max_member_bytes": len(LARGE) - 1},
    ),
    Case(
        "one-large-image-of-three",
        [
            file("bad.json", {"texts": [], "images": ["a.png", "b.bmp", "c.jpg"]}),
            file("a.png", PNG),
            file("b.bmp", LARGE),
            file("c.jpg", JPG),
        ],
        [
            Sample(
                texts={},
                images={0: PNG, 1: None, 2: JPG},
                said={"lengths": {"texts": 0}},
                faults={1: "oversized member 'b.bmp'"},
            )
        ],
        options=LARGEST,
    ),
    Case(
        "large-member-by-a-link",
        [
            document(texts=["t", None], images=[None, "l.png"]),
            link("l.png", "a.png", data=LARGE),
            file("a.png", LARGE),
        ],
        [Sample(images={1: None}, faults={1: "oversized member 'l.png'"})],
        options=LARGEST,
    ),
    Case(
        "large-tiff-of-two-frames",
        [document(texts=["t", None, None], images=[None, "p0", "p1"]), file("bad.tiff", TIFF)],
        [
            Sample(
                images={1: None, 2: None},
                tokens={1: "p0", 2: "p1"},
                faults=dict.fromkeys((1, 2), "oversized member 'bad.tiff'"),
            )
        ],
        options=LARGEST,
    ),
    Case(
        "large-member-nobody-wants",
        [document(), file("spare.bin", LARGE)],
        [Sample()],
        options=LARGEST,
        notes={"unreferenced_members": ["spare.bin"]},
    ),
    Case(
        "json-over-the-limit",
        [document(texts=["x" * 400])],
        [Lost("oversized_member", "json member of ")],
        settings=JSON_LIMIT,
    ),
    Case(
        "json-under-the-limit",
        [document(texts=["x" * 300])],
        [Sample(texts={0: "x" * 300})],
        settings=JSON_LIMIT,
    ),
    Case(
        "bad-json-over-the-limit",
        [file("bad.json", b"{" * 401)],
        [Lost("oversized_member", "401 bytes, more than 400")],
        settings=JSON_LIMIT,
    ),
]
