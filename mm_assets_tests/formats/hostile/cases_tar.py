"""Tars that are cut, contradict themselves or are none; and odd tars that are sound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mm_assets_tests.formats.hostile.outcomes import PNG, Case, Damage, Lost, Sample, neighbour, pictured
from mm_assets_tests.formats.hostile.shards import (
    BLOCK,
    END,
    Entry,
    document,
    file,
    gnu_name,
    header,
    named,
    padded,
    pax,
    pax_body,
    special,
    tar,
)

START = sum(
    len(entry.blocks) for entry in neighbour("before")
)  # byte offset at which the entries of a case begin
LONG = "folder/" * 40 + "x" * 60


def size_of(*entries: Entry) -> int:
    return sum(len(entry.blocks) for entry in entries)


def ending(end: bytes) -> Callable[[list[Entry]], bytes]:
    return lambda entries: tar(entries, end)


def cut_at(size: int) -> Callable[[list[Entry]], bytes]:
    return lambda entries: tar(entries)[:size]


def only(data: bytes) -> Callable[[list[Entry]], bytes]:
    return lambda entries: data


def truncated(
    name: str,
    size: int,
    words: str,
    members: list[Entry],
    *samples: Any,
    offset: int | None = None,
    **more: Any,
) -> Case:
    """A tar of which the first ``size`` bytes are there; what is damaged begins at ``offset``."""
    damage = Damage("truncated_tar", words, START if offset is None else offset)
    return Case(name, members, [*samples, damage], shard=cut_at(size), kept=("before",), **more)


def damaged(name: str, words: str, *members: Entry, lost: Lost | None = None) -> Case:
    """A tar of which these members cannot be read, and the good sample behind them can.

    ``lost``: what is known of them.
    """
    return Case(
        name,
        members,
        [*([lost] if lost else []), Damage("damaged_tar", words, START, START + size_of(*members))],
    )


def found_behind(name: str, words: str, bad: Entry) -> Case:
    """A tar of which something cannot be read, and the sample behind that can."""
    return Case(name, [bad, ONE], [Sample(), Damage("damaged_tar", words, START, START + size_of(bad))])


def no_tar(name: str, data: bytes, kind: str, words: str, **more: Any) -> Case:
    return Case(name, [], [Damage(kind, words, 0)], shard=only(data), kept=(), **more)


def sound(name: str, *members: Entry, key: str = "bad", **more: Any) -> Case:
    return Case(name, members, [Sample(key)], **more)


ONE = document()
PICTURED = pictured(PNG)
BEHIND_ONE, BEHIND_PICTURED = START + size_of(ONE), START + size_of(*PICTURED)
ALL = [*neighbour("before"), ONE, *neighbour("after")]
WHOLE = size_of(*ALL)

BEHIND_JSON = START + size_of(PICTURED[0])
SPARSE = Entry(header(b"bad.json", 2, b"S") + padded(b"{}"))
SPARSE_PICTURE = Entry(header(b"bad.1.png", 600, b"S") + bytes(2 * BLOCK))
INNER = file("inner.tar", tar([document("in")]))
THREE = [document(key) for key in ("s1", "s2", "s3")]


def with_map(blocks: int) -> Entry:
    """A sparse member whose map goes on in so many further blocks."""
    first = bytearray(header(b"bad.json", 2, b"S"))
    first[482] = 1
    first[148:156] = b" " * 8
    first[148:156] = b"%06o\0 " % sum(first)
    more = [bytes(504) + bytes([number < blocks]) + bytes(7) for number in range(1, blocks + 1)]
    return Entry(bytes(first) + b"".join(more) + padded(b"{}"))


def unreadable(words: str) -> Lost:
    return Lost("unreadable_member", words, has_bytes=False)


LONG_SPARSE = with_map(3)

CUT = [
    truncated(
        "cut-between-samples", BEHIND_ONE, "the end blocks are missing", [ONE], Sample(), offset=BEHIND_ONE
    ),
    truncated(
        "cut-between-json-and-image",
        START + size_of(PICTURED[0]),
        "the end blocks are missing",
        PICTURED,
        Sample(images={1: None}, faults={1: "missing member 'bad.1.png'"}),
        offset=START + size_of(PICTURED[0]),
    ),
    truncated("cut-in-a-header", START + 200, "cut within a header, after 200 bytes", [ONE]),
    truncated("cut-after-a-header", START + BLOCK, "and their padding end at", [ONE]),
    truncated("cut-in-a-json", START + BLOCK + 10, "and their padding end at", [ONE]),
    truncated(
        "cut-in-an-image",
        START + size_of(PICTURED[0]) + BLOCK + 50,
        "and their padding end at",
        PICTURED,
        Sample(images={1: None}, faults={1: "missing member 'bad.1.png'"}),
        offset=START + size_of(PICTURED[0]),
    ),
    truncated(
        "cut-in-padding",
        BEHIND_PICTURED - 1,
        "and their padding end at",
        PICTURED,
        Sample(images={1: PNG}),
        offset=BEHIND_PICTURED - 1,
    ),
    truncated(
        "cut-in-an-extended-header",
        START + BLOCK + 10,
        "extended header beyond the end",
        [pax({"path": "bad.json"}), ONE],
    ),
    truncated(
        "cut-behind-an-extended-header",
        START + 2 * BLOCK,
        "the end blocks are missing",
        [pax({"path": "bad.json"}), ONE],
    ),
    truncated(
        "cut-in-the-last-json-of-a-sample-json-last",
        START + size_of(PICTURED[1]) + BLOCK + 3,
        "and their padding end at",
        PICTURED[::-1],
        offset=START + size_of(PICTURED[1]),
        notes={"unreferenced_members": ["bad.1.png"]},
    ),
    truncated(
        "cut-in-a-bad-json",
        START + BLOCK + 2,
        "and their padding end at",
        [file("bad.json", b"{[")],
        Lost("bad_json", "not JSON"),
        offset=START + BLOCK + 2,
    ),
    Case(
        "no-end-blocks",
        [ONE],
        [Sample(), Damage("truncated_tar", "the end blocks are missing", WHOLE)],
        shard=ending(b""),
    ),
    Case(
        "one-end-block",
        [ONE],
        [Sample(), Damage("truncated_tar", "512 of at least 1024 zero bytes", WHOLE)],
        shard=ending(bytes(BLOCK)),
    ),
    Case(
        "cut-in-the-end-blocks",
        [ONE],
        [Sample(), Damage("truncated_tar", "1000 of at least", WHOLE)],
        shard=ending(bytes(1000)),
    ),
    Case(
        "cut-in-the-first-end-block",
        [ONE],
        [Sample(), Damage("truncated_tar", "cut within a header, after 100", WHOLE)],
        shard=ending(bytes(100)),
    ),
    truncated(
        "size-beyond-the-file",
        WHOLE,
        "and their padding end at",
        [file("bad.json", b"{}", size_field=b"77777777777\0")],
    ),
    truncated(
        "base-256-size-beyond-the-file",
        WHOLE,
        "and their padding end at",
        [file("bad.json", b"{}", size_field=b"\x80" + b"\x7f" * 11)],
    ),
    truncated("pax-size-beyond-the-file", WHOLE, "and their padding end at", [pax({"size": "9" * 18}), ONE]),
]

DAMAGED = [
    damaged("checksum-wrong", "header checksum mismatch", file("bad.json", {"texts": []}, checksum=1)),
    damaged(
        "checksum-wrong-in-the-middle-of-a-sample", "header checksum mismatch", Entry(b"?" + ONE.blocks[1:])
    ),
    damaged(
        "header-zeroed", "data after the end-of-archive blocks", Entry(bytes(BLOCK) + ONE.blocks[BLOCK:])
    ),
    found_behind("stretch-zeroed", "data after the end-of-archive blocks", Entry(bytes(20 * BLOCK))),
    found_behind("stretch-of-noise", "header checksum mismatch", Entry(bytes(range(256)) * 8)),
    found_behind(
        "block-lost", "header checksum mismatch", Entry(padded(b"the rest of a member whose header is lost"))
    ),
    Case(
        "half-a-block-too-many",
        [Entry(bytes(300)), ONE],
        [Damage("damaged_tar", "header checksum mismatch", START)],
        kept=("before",),
    ),
    damaged("size-no-number", "is not a size", file("bad.json", b"{}", size_field=b"not a size!\0")),
    damaged("size-not-octal", "is not a size", file("bad.json", b"{}", size_field=b"00000000009\0")),
    damaged("size-negative", "is not a size", file("bad.json", b"{}", size_field=b"\xff" * 11 + b"\xfe")),
    damaged("sparse", "sparse member", SPARSE, lost=unreadable("a sparse file")),
    damaged("sparse-with-a-longer-map", "sparse member", LONG_SPARSE, lost=unreadable("a sparse file")),
    damaged(
        "sparse-by-pax",
        "sparse member",
        pax({"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}),
        ONE,
        lost=unreadable("a sparse file"),
    ),
    damaged(
        "sparse-by-pax-with-its-name",
        "sparse member",
        pax({"GNU.sparse.major": "1", "GNU.sparse.name": "d/z.json"}),
        ONE,
        lost=Lost("unreadable_member", "a sparse file", "d/z", "d/z.json", has_bytes=False),
    ),
    Case(
        "sparse-pictures",
        [pictured(PNG)[0], SPARSE_PICTURE, SPARSE_PICTURE],
        [
            Sample(images={1: None}, faults={1: "missing member 'bad.1.png'"}),
            *(
                Damage(
                    "damaged_tar",
                    "sparse member 'bad.1.png'",
                    BEHIND_JSON + at,
                    BEHIND_JSON + at + size_of(SPARSE_PICTURE),
                )
                for at in (0, size_of(SPARSE_PICTURE))
            ),
        ],
    ),
    damaged(
        "part-of-another-volume",
        "continued from another volume",
        Entry(header(b"bad.json", 2, b"M") + padded(b"{}")),
        lost=unreadable("began on another volume"),
    ),
    damaged(
        "pax-contradicts-gnu", "contradict each other", gnu_name("one.json"), pax({"path": "two.json"}), ONE
    ),
    damaged("pax-twice", "contradict each other", pax({"size": "5"}), pax({"size": "6"}), ONE),
    damaged("pax-malformed", "malformed PAX record", pax_body(b"99 path=bad.json\n"), ONE),
    damaged("pax-without-equals", "malformed PAX record", pax_body(b"8 path?\n"), ONE),
    damaged("pax-size-no-number", "is not a size", pax({"size": "-1"}), ONE),
    damaged("pax-too-long", "extended header of 2000011 bytes", pax({"x": "y" * 2_000_000}), ONE),
    Case(
        "size-too-small",
        [file("bad.json", b'{"t": "' + b"x" * 900 + b'"}', size_field=b"00000000010\0")],
        [
            Lost("bad_json", "not JSON", data=b'{"t": "x'),
            Damage("damaged_tar", "header checksum mismatch", START + 2 * BLOCK, START + 3 * BLOCK),
        ],
    ),
    Case(
        "extended-header-at-the-end",
        [ONE],
        [Sample(), Damage("damaged_tar", "an extended header without its member", WHOLE, WHOLE + 2 * BLOCK)],
        shard=lambda entries: tar([*entries, pax({"path": "late.json"})]),
    ),
    Case(
        "two-tars-in-one-file",
        [ONE],
        [
            Sample(),
            Damage("damaged_tar", "data after the end-of-archive blocks", BEHIND_ONE, BEHIND_ONE + len(END)),
        ],
        shard=lambda entries: tar(entries[:3]) + tar(entries[3:]),
    ),
    Case(
        "three-tars-in-one-file",
        [ONE],
        [
            Sample(),
            *(
                Damage("damaged_tar", "data after the end-of-archive blocks", at, at + len(END))
                for at in (START, BEHIND_ONE + len(END))
            ),
        ],
        shard=lambda entries: tar(entries[:2]) + tar(entries[2:3]) + tar(entries[3:]),
    ),
    Case(
        "damage-twice",
        [Entry(b"?" + ONE.blocks[1:]), document("mid"), Entry(b"?" + ONE.blocks[1:])],
        [
            Sample("mid"),
            *(
                Damage("damaged_tar", "header checksum mismatch", at, at + size_of(ONE))
                for at in (START, START + size_of(ONE, document("mid")))
            ),
        ],
    ),
    damaged(
        "name-lost-with-its-header",
        "header checksum mismatch",
        Entry(b"?" + gnu_name(f"{LONG}.json").blocks[1:]),
        ONE,
    ),
    damaged(
        "name-lost-with-all-of-its-header",
        "data after the end-of-archive blocks",
        Entry(bytes(BLOCK) + pax({"path": "other.json"}).blocks[BLOCK:]),
        ONE,
    ),
    damaged(
        "name-lost-but-for-its-beginning",
        "data after the end-of-archive blocks",
        Entry(bytes(BLOCK) + gnu_name(f"{LONG}.json").blocks[BLOCK:]),
        file(LONG[:95] + ".json", {"texts": ["t"]}),
    ),
    damaged("inner-tar-behind-a-bad-header", "header checksum mismatch", Entry(b"?" + INNER.blocks[1:])),
    Case(
        "inner-tar-behind-a-zeroed-header",
        [Entry(bytes(BLOCK) + INNER.blocks[BLOCK:], "in.json", document("in").data)],
        [
            Sample("in"),
            Damage("damaged_tar", "data after the end-of-archive blocks", START, START + BLOCK),
            Damage(
                "damaged_tar",
                "data after the end-of-archive blocks",
                START + BLOCK + size_of(document("in")),
                START + size_of(INNER),
            ),
        ],
    ),
    Case(
        "size-flipped-to-that-of-two",
        [Entry(ONE.blocks[:124] + b"%011o\0" % size_of(ONE, ONE) + ONE.blocks[136:]), *THREE],
        [
            *(Sample(entry.name[:2]) for entry in THREE),
            Damage("damaged_tar", "header checksum mismatch", START, START + size_of(ONE)),
        ],
    ),
    Case(
        "junk-behind-the-end",
        [ONE],
        [Sample(), Damage("damaged_tar", "data after the end-of-archive blocks", WHOLE)],
        shard=ending(END + b"junk"),
    ),
    Case(
        "damage-takes-the-image",
        [PICTURED[0], Entry(b"?" + PICTURED[1].blocks[1:])],
        [
            Sample(images={1: None}, faults={1: "missing member 'bad.1.png'"}),
            Damage(
                "damaged_tar",
                "header checksum mismatch",
                START + size_of(PICTURED[0]),
                START + size_of(*PICTURED),
            ),
        ],
    ),
]

NONE = [
    no_tar("empty-file", b"", "truncated_tar", "the file is empty"),
    no_tar("short-text", b"404 not found", "truncated_tar", "cut within a header, after 13 bytes"),
    no_tar("long-text", b"<html>" * 1000, "damaged_tar", "header checksum mismatch"),
    no_tar("picture", PNG * 2, "damaged_tar", "header checksum mismatch"),
    Case(
        "zip",
        [],
        [Damage("damaged_tar", "header checksum mismatch", 0, BLOCK)],
        shard=only(b"PK\x03\x04" + bytes(2000)),
        kept=(),
    ),
    Case("empty-tar", [], [], shard=only(END), kept=()),
    Case("empty-tar-of-one-record", [], [], shard=only(bytes(10_240)), kept=()),
]

CONTIGUOUS = Entry(header(b"bad.json", len(ONE.data), b"7") + padded(ONE.data), "bad.json", ONE.data)
NON_UTF8 = b"caf\xe9.json"

ODD = [
    sound("name-long-gnu", named(f"{LONG}.json", gnu_name(f"{LONG}.json"), ONE), key=LONG),
    sound("name-long-pax", named(f"{LONG}.json", pax({"path": f"{LONG}.json"}), ONE), key=LONG),
    sound("name-long-pax-solaris", named(f"{LONG}.json", pax({"path": f"{LONG}.json"}, b"X"), ONE), key=LONG),
    sound(
        "name-with-ustar-prefix",
        Entry(header(b"bad.json", len(ONE.data), prefix=b"a/b") + padded(ONE.data), "a/b/bad.json", ONE.data),
        key="a/b/bad",
    ),
    sound("name-unicode-pax", named("ü/漢.json", pax({"path": "ü/漢.json"}), ONE), key="ü/漢"),
    sound("name-of-100-bytes", document("n" * 95), key="n" * 95),
    sound(
        "size-by-pax",
        named(
            "bad.json",
            pax({"size": str(len(ONE.data))}),
            Entry(header(b"bad.json") + padded(ONE.data), "", ONE.data),
        ),
    ),
    sound(
        "size-base-256", file("bad.json", ONE.data, size_field=b"\x80" + len(ONE.data).to_bytes(11, "big"))
    ),
    sound("size-with-spaces", file("bad.json", ONE.data, size_field=b"%10o \0" % len(ONE.data))),
    sound(
        "header-of-v7",
        Entry(
            header(b"bad.json", len(ONE.data), b"\0", magic=bytes(8)) + padded(ONE.data), "bad.json", ONE.data
        ),
    ),
    sound("header-of-gnu", file("bad.json", ONE.data, magic=b"ustar  \0")),
    sound("checksum-of-signed-characters", file("ü.json", ONE.data, is_signed=True), key="ü"),
    sound("contiguous-file", CONTIGUOUS),
    sound("global-pax-header", pax({"comment": "x" * 900}, b"g"), ONE),
    sound(
        "pax-with-times-and-comments",
        named("bad.json", pax({"mtime": "1.5", "comment": "ü", "SCHILY.xattr.user.x": b"\xff\0"}), ONE),
    ),
    sound("folders", special("a/", b"5"), Entry(header(b"b/", 0, b"\0")), ONE),
    sound("volume-label", Entry(header(b"label", 0, b"V")), ONE, notes={"skipped_members": ["label"]}),
    Case(
        "pipe-and-devices",
        [special("pipe.png", b"6"), special("dev.json", b"3"), special("dev", b"4"), ONE],
        [Sample(), Lost("unreadable_member", "a character device", "dev", "dev.json", has_bytes=False)],
        notes={"skipped_members": ["pipe.png", "dev"]},
    ),
    Case(
        "kinds-that-are-no-files",
        [special(f"{kind}.json", kind.encode()) for kind in "346DV"],
        [
            Lost("unreadable_member", words, kind, f"{kind}.json", has_bytes=False)
            for kind, words in zip(
                "346DV",
                ("character device", "block device", "a pipe", "files in a folder", "a volume"),
                strict=True,
            )
        ],
    ),
    Case(
        "kinds-nobody-knows",
        [file(f"{kind}.json", ONE.data, kind.encode()) for kind in "Z89AINabz~"],
        [Sample(kind) for kind in "Z89AINabz~"],
    ),
    Case(
        "kind-nobody-knows-of-a-picture",
        [PICTURED[0], file("bad.1.png", PNG, b"Z")],
        [Sample(images={1: PNG})],
    ),
    sound(
        "link-that-states-a-size",
        Entry(header(b"l.png", 7000, b"2", link=b"x")),
        ONE,
        notes={"unreferenced_members": ["l.png"]},
    ),
    sound("name-empty", file(b"", b"what am I"), ONE, notes={"unreferenced_members": [""]}),
    sound(
        "name-that-is-a-suffix",
        file(".json", {"texts": ["hidden"]}),
        ONE,
        notes={"unreferenced_members": [".json"]},
    ),
    sound(
        "name-not-utf8-of-a-picture",
        file(b"caf\xe9.png", PNG),
        ONE,
        notes={"unreferenced_members": ["caf\\xe9.png"]},
    ),
    Case(
        "name-not-utf8-of-a-json",
        [file(NON_UTF8, ONE.data)],
        [Lost("not_utf8", "the name is not UTF-8", "caf\\xe9", "caf\\xe9.json")],
    ),
    Case(
        "name-not-utf8-that-spells-another",
        [file(NON_UTF8, ONE.data), file("caf\\xe9.json", {"texts": ["u"], "images": [None]})],
        [
            Lost("not_utf8", "the name is not UTF-8", "caf\\xe9", "caf\\xe9.json", ONE.data),
            Sample("caf\\xe9", {0: "u"}),
        ],
    ),
    sound("name-with-leading-dot", file("./bad.json", ONE.data)),
    sound("name-with-leading-dots", named("bad.json", file(".//././bad.json", ONE.data))),
    sound("name-absolute", document("/abs/bad"), key="/abs/bad"),
    sound("name-that-climbs", document("../../bad"), key="../../bad"),
    sound("suffix-in-upper-case-json", file("bad.JSON", ONE.data)),
    Case("json-last", PICTURED[::-1], [Sample(images={1: PNG})]),
    Case(
        "samples-interleaved",
        [*pictured(PNG)[:1], document("mid"), *pictured(PNG)[1:]],
        [Sample(images={1: PNG}), Sample("mid")],
    ),
    sound("tape-record", ONE, shard=lambda entries: tar(entries).ljust(40_960, b"\0")),
]

CASES = [*CUT, *DAMAGED, *NONE, *ODD]
