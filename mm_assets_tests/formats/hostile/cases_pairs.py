"""Image-text pairs whose members are missing, too many, no text, or no files; and what looks like a pair and
is none.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from mm_assets_tests.formats.hostile.outcomes import JPG, PNG, Case, Lost, Outcome, Rejected, Sample
from mm_assets_tests.formats.hostile.shards import Entry, document, file, link, special

TEXT, IMAGE = {0: "t"}, {1: PNG}


def pairs(
    name: str, members: Sequence[Entry], outcomes: Sequence[Outcome], *unreferenced: str, **more: Any
) -> Case:
    """Members in a tar of pairs; those of them that are no part of any sample."""
    notes = {"unreferenced_members": list(unreferenced)} if unreferenced else {}
    return Case(name, members, outcomes, is_of_pairs=True, notes=notes, **more)


def image(name: str = "bad.png") -> Entry:
    return file(name, PNG)


def text(name: str = "bad.txt", data: bytes = b"t") -> Entry:
    return file(name, data)


def lacking(words: str) -> Sample:
    """A pair whose image is not just one."""
    return Sample(texts=TEXT, images={1: None}, faults={1: words})


NO_IMAGE = "missing member: no image of key 'bad'"

READ = [
    pairs("pair", [image(), text()], [Sample(texts=TEXT, images=IMAGE)]),
    pairs(
        "pair-with-fields",
        [text(), file("bad.json", {"url": "u", "n": 1}), image()],
        [Sample(texts=TEXT, images=IMAGE, extras={"url": "u", "n": 1})],
        columns={"url": pa.string(), "n": pa.int64()},
    ),
    pairs(
        "pair-caption-in-json",
        [file("bad.json", {"caption": "t"}), image()],
        [Sample(texts=TEXT, images=IMAGE)],
    ),
    pairs(
        "pair-caption-twice",
        [file("bad.json", {"caption": "c"}), text(), image()],
        [Sample(texts=TEXT, images=IMAGE, extras={"caption": "c"})],
        columns={"caption": pa.string()},
    ),
    pairs(
        "pair-caption-null",
        [file("bad.json", {"caption": None}), image()],
        [Sample(texts={}, images=IMAGE, said={"nulls": ["caption"]})],
        columns={"caption": pa.null()},
    ),
    pairs("pair-empty-text", [image(), text(data=b"")], [Sample(texts={0: ""}, images=IMAGE)]),
    pairs("pair-in-a-folder", [image("a/bad.PNG"), text("a/bad.TXT")], [Sample("a/bad", TEXT, IMAGE)]),
    pairs(
        "pair-linked",
        [file("data", PNG), link("bad.png", "data", data=PNG), text()],
        [Sample(texts=TEXT, images=IMAGE)],
    ),
    pairs(
        "pair-id-of-the-json",
        [file("bad.json", {"sample_id": "x", "caption": "t"}), image()],
        [Sample("x", TEXT, IMAGE)],
    ),
]

FAULTY = [
    pairs("pair-without-image", [text()], [lacking(NO_IMAGE)]),
    pairs(
        "pair-without-image-and-text",
        [file("bad.json", {"n": 1})],
        [Sample(texts={}, images={1: None}, faults={1: NO_IMAGE}, extras={"n": 1})],
        columns={"n": pa.int64()},
    ),
    pairs(
        "pair-of-two-images",
        [image(), file("bad.jpg", JPG), text()],
        [lacking("ambiguous: key 'bad' has 2 images: bad.png, bad.jpg")],
        "bad.png",
        "bad.jpg",
    ),
    pairs(
        "pair-of-one-name-twice",
        [image(), file("bad.png", JPG), text()],
        [lacking("ambiguous: key 'bad' has 2 images: bad.png, bad.png")],
        "bad.png",
        "bad.png",
    ),
    pairs(
        "pair-linked-out-of-the-tar",
        [link("bad.png", "../../etc/passwd"), text()],
        [lacking("dangling reference: member 'bad.png': links to '../../etc/passwd', outside the tar")],
        "bad.png",
    ),
    pairs(
        "pair-linked-to-itself",
        [link("bad.png", "bad.png"), text()],
        [lacking("dangling reference: member 'bad.png': links to 'bad.png', which leads back to itself")],
    ),
    Case(
        "pair-with-a-pipe-for-an-image",
        [special("bad.png", b"6"), text()],
        [lacking(NO_IMAGE)],
        is_of_pairs=True,
        notes={"skipped_members": ["bad.png"]},
    ),
    pairs(
        "pair-named-image-not-there",
        [file("bad.json", {"caption": "t", "file": "../x.png"}), image()],
        [
            Sample(
                texts=TEXT,
                images={1: None},
                faults={1: "missing member '../x.png'"},
                said={"fields": {"file": "../x.png"}},
            )
        ],
        "bad.png",
        options={"image_member_field": "file"},
    ),
    pairs(
        "pair-image-undecodable",
        [file("bad.png", PNG[:60]), text()],
        [Sample(texts=TEXT, images={1: PNG[:60]}, faults={1: "unreadable image: "})],
    ),
    pairs(
        "pair-image-beyond-the-limit",
        [file("bad.png", PNG + bytes(9000)), text()],
        [Sample(texts=TEXT, images={1: None}, faults={1: "oversized member 'bad.png'"})],
        options={"max_member_bytes": 8000},
    ),
]

LOST = [
    pairs(
        "pair-text-not-utf8",
        [image(), text(data=b"\xff\xfe")],
        [Lost("not_utf8", "bad.txt: not UTF-8", member="bad.txt")],
        "bad.png",
    ),
    pairs(
        "pair-text-not-utf8-beside-json",
        [file("bad.json", {"sample_id": "x"}), text(data=b"\xed\xa0\x80"), image()],
        [Lost("not_utf8", "bad.txt: not UTF-8", "x", "bad.txt")],
        "bad.png",
    ),
    pairs(
        "pair-json-bad",
        [file("bad.json", b"{"), text(), image()],
        [Lost("bad_json", "bad.json: not JSON")],
        "bad.txt",
        "bad.png",
    ),
    pairs(
        "pair-json-pickled",
        [file("bad.json", pickle.dumps([1])), image()],
        [Lost("not_utf8", "bad.json: not UTF-8")],
        "bad.png",
    ),
    pairs(
        "pair-of-two-texts",
        [image(), text(), text("bad.TXT", b"u")],
        [Lost("dangling_reference", "ambiguous: key 'bad' has 2 texts: bad.txt, bad.TXT", member="bad.txt")],
        "bad.png",
    ),
    pairs(
        "pair-text-linked-out-of-the-tar",
        [link("bad.txt", "/etc/passwd"), image()],
        [
            Lost(
                "dangling_reference",
                "links to '/etc/passwd', outside the tar",
                member="bad.txt",
                has_bytes=False,
            )
        ],
        "bad.png",
    ),
    pairs(
        "pair-text-beyond-the-limit",
        [text(data=b"t" * 21), image()],
        [Lost("oversized_member", "text member of 21 bytes, more than 20", member="bad.txt")],
        "bad.png",
        settings={"mm_assets.formats.webdataset.samples.MAX_JSON_BYTES": 20},
    ),
    pairs(
        "pair-twice-by-id",
        [image(), file("bad.json", {"sample_id": "before", "caption": "t"})],
        [
            Rejected(
                "duplicate_id",
                "occurs twice in this shard",
                "before",
                [(-1, "metadata"), (0, "text"), (1, "image")],
            )
        ],
    ),
]

# A document in the tar: nothing in it is a pair.
DOCUMENTS = [
    Case(
        "pair-beside-documents",
        [image("p.png"), text("p.txt")],
        [],
        notes={"unreferenced_members": ["p.png", "p.txt"]},
    ),
    Case(
        "pair-of-a-document",
        [document(caption="c"), image(), text()],
        [Sample(extras={"caption": "c"})],
        {"caption": pa.string()},
        notes={"unreferenced_members": ["bad.png", "bad.txt"]},
    ),
]

CASES = [*READ, *FAULTY, *LOST, *DOCUMENTS]
