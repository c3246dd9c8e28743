"""Tars that are cut, contradict themselves or are none; and odd tars that are sound."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import Any

from mm_assets_tests.hostile.outcomes import PNG, Case, Damage, Lost, Sample, neighbour, pictured
from mm_assets_tests.hostile.shards import (
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

START = sum(len(entry.blocks) for entry in neighbour("before"))  # byte offset at which the entries of a case begin
LONG = "folder/" * 40 + "x" * 60


def size_of(*entries: Entry) -> int:
    return sum(len(entry.blocks) for entry in entries)


def ending(end: bytes) -> Callable[[list[Entry]], bytes]:
    return lambda entries: tar(entries, end)


def cut_at(size: int) -> Callable[[list[Entry]], bytes]:
    return lambda entries: tar(entries)[:size]


def only(data: bytes) -> Callable[[list[Entry]], bytes]:
    return lambda entries: data


def truncated(name: str, size: int, words: str, members: list[Entry], *samples: Any, offset: int | None = None, **more: Any) -> Case:
    """A tar of which the first ``size`` bytes are there; what is damaged begins at ``offset``."""
    damage = Damage("truncated_tar", words, START if offset is None else offset)
    return Case(name, members, [*samples, damage], shard=cut_at(size), kept=("before",), **more)


def damaged(name: str, words: str, *members: Entry, offset: int = START) -> Case:
    """A tar that cannot be read from ``offset`` on, the good sample behind that included."""
    return Case(name, members, [Damage("damaged_tar", words, offset)], kept=("before",))


def no_tar(name: str, data: bytes, kind: str, words: str, **more: Any) -> Case:
    return Case(name, [], [Damage(kind, words, 0)], shard=only(data), kept=(), **more)


def sound(name: str, *members: Entry, key: str = "bad", **more: Any) -> Case:
    return Case(name, members, [Sample(key)], **more)


ONE = document()
PICTURED = pictured(PNG)
BEHIND_ONE, BEHIND_PICTURED = START + size_of(ONE), START + size_of(*PICTURED)
ALL = [*neighbour("before"), ONE, *neighbour("after")]
WHOLE = size_of(*ALL)

CUT = [
    truncated("cut-between-samples", BEHIND_ONE, "the end blocks are missing", [ONE], Sample(), offset=BEHIND_ONE),
    truncated("cut-between-json-and-image", START + size_of(PICTURED[0]), "the end blocks are missing", PICTURED,
              Sample(images={1: None}, faults={1: "missing member 'bad.1.png'"}), offset=START + size_of(PICTURED[0])),
    truncated("cut-in-a-header", START + 200, "cut within a header, after 200 bytes", [ONE]),
    truncated("cut-after-a-header", START + BLOCK, "and their padding end at", [ONE]),
    truncated("cut-in-a-json", START + BLOCK + 10, "and their padding end at", [ONE]),
    truncated("cut-in-an-image", START + size_of(PICTURED[0]) + BLOCK + 50, "and their padding end at", PICTURED,
              Sample(images={1: None}, faults={1: "missing member 'bad.1.png'"}), offset=START + size_of(PICTURED[0])),
    truncated("cut-in-padding", BEHIND_PICTURED - 1, "and their padding end at", PICTURED, Sample(images={1: PNG}),
              offset=BEHIND_PICTURED - 1),
    truncated("cut-in-an-extended-header", START + BLOCK + 10, "extended header beyond the end", [pax({"path": "bad.json"}), ONE]),
    truncated("cut-behind-an-extended-header", START + 2 * BLOCK, "the end blocks are missing", [pax({"path": "bad.json"}), ONE]),
    truncated("cut-in-the-last-json-of-a-sample-json-last", START + size_of(PICTURED[1]) + BLOCK + 3, "and their padding end at",
              PICTURED[::-1], offset=START + size_of(PICTURED[1]), notes={"unreferenced_members": ["bad.1.png"]}),
    truncated("cut-in-a-bad-json", START + BLOCK + 2, "and their padding end at", [file("bad.json", b"{[")],
              Lost("bad_json", "not JSON"), offset=START + BLOCK + 2),
    Case("no-end-blocks", [ONE], [Sample(), Damage("truncated_tar", "the end blocks are missing", WHOLE)], shard=ending(b"")),
    Case("one-end-block", [ONE], [Sample(), Damage("truncated_tar", "512 of at least 1024 zero bytes", WHOLE)], shard=ending(bytes(BLOCK))),
    Case("cut-in-the-end-blocks", [ONE], [Sample(), Damage("truncated_tar", "1000 of at least", WHOLE)], shard=ending(bytes(1000))),
    Case("cut-in-the-first-end-block", [ONE], [Sample(), Damage("truncated_tar", "cut within a header, after 100", WHOLE)],
         shard=ending(bytes(100))),
    truncated("size-beyond-the-file", WHOLE, "and their padding end at", [file("bad.json", b"{}", size_field=b"77777777777\0")]),
    truncated("base-256-size-beyond-the-file", WHOLE, "and their padding end at",
              [file("bad.json", b"{}", size_field=b"\x80" + b"\x7f" * 11)]),
    truncated("pax-size-beyond-the-file", WHOLE, "and their padding end at", [pax({"size": "9" * 18}), ONE]),
]  # fmt: skip

DAMAGED = [
    damaged("checksum-wrong", "header checksum mismatch", file("bad.json", {"texts": []}, checksum=1)),
    damaged("checksum-wrong-in-the-middle-of-a-sample", "header checksum mismatch", Entry(b"?" + ONE.blocks[1:])),
    damaged("header-zeroed", "data after the end-of-archive blocks", Entry(bytes(BLOCK) + ONE.blocks[BLOCK:])),
    damaged("stretch-zeroed", "data after the end-of-archive blocks", Entry(bytes(20 * BLOCK)), ONE),
    damaged("stretch-of-noise", "header checksum mismatch", Entry(bytes(range(256)) * 8), ONE),
    damaged("block-lost", "header checksum mismatch", Entry(padded(b"the rest of a member whose header is lost")), ONE),
    damaged("half-a-block-too-many", "header checksum mismatch", Entry(bytes(300)), ONE),
    damaged("size-no-number", "is not a size", file("bad.json", b"{}", size_field=b"not a size!\0")),
    damaged("size-not-octal", "is not a size", file("bad.json", b"{}", size_field=b"00000000009\0")),
    damaged("size-negative", "is not a size", file("bad.json", b"{}", size_field=b"\xff" * 11 + b"\xfe")),
    damaged("sparse", "sparse member", Entry(header(b"bad.json", 2, b"S") + padded(b"{}"))),
    damaged("sparse-by-pax", "sparse member", pax({"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}), ONE),
    damaged("part-of-another-volume", "continued from another volume", Entry(header(b"bad.json", 2, b"M") + padded(b"{}"))),
    damaged("pax-contradicts-gnu", "contradict each other", gnu_name("one.json"), pax({"path": "two.json"}), ONE),
    damaged("pax-twice", "contradict each other", pax({"size": "5"}), pax({"size": "6"}), ONE),
    damaged("pax-malformed", "malformed PAX record", pax_body(b"99 path=bad.json\n"), ONE),
    damaged("pax-without-equals", "malformed PAX record", pax_body(b"8 path?\n"), ONE),
    damaged("pax-size-no-number", "is not a size", pax({"size": "-1"}), ONE),
    damaged("pax-too-long", "extended header of 2000011 bytes", pax({"x": "y" * 2_000_000}), ONE),
    Case("size-too-small", [file("bad.json", b'{"t": "' + b"x" * 900 + b'"}', size_field=b"00000000010\0")],
         [Lost("bad_json", "not JSON", data=b'{"t": "x'), Damage("damaged_tar", "header checksum mismatch", START + 2 * BLOCK)],
         kept=("before",)),
    Case("extended-header-at-the-end", [ONE], [Sample(), Damage("damaged_tar", "an extended header without its member", WHOLE)],
         shard=lambda entries: tar([*entries, pax({"path": "late.json"})])),
    Case("two-tars-in-one-file", [ONE], [Sample(), Damage("damaged_tar", "data after the end-of-archive blocks", BEHIND_ONE)],
         shard=lambda entries: tar(entries[:3]) + tar(entries[3:]), kept=("before",)),
    Case("junk-behind-the-end", [ONE], [Sample(), Damage("damaged_tar", "data after the end-of-archive blocks", WHOLE)],
         shard=ending(END + b"junk")),
    Case("damage-takes-the-image", [PICTURED[0], Entry(b"?" + PICTURED[1].blocks[1:])],
         [Sample(images={1: None}, faults={1: "missing member 'bad.1.png'"}),
          Damage("damaged_tar", "header checksum mismatch", START + size_of(PICTURED[0]))], kept=("before",)),
]  # fmt: skip

NONE = [
    no_tar("empty-file", b"", "truncated_tar", "the file is empty"),
    no_tar("short-text", b"404 not found", "truncated_tar", "cut within a header, after 13 bytes"),
    no_tar("long-text", b"<html>" * 1000, "damaged_tar", "header checksum mismatch"),
    no_tar("picture", PNG * 2, "damaged_tar", "header checksum mismatch"),
    no_tar("zip", b"PK\x03\x04" + bytes(2000), "damaged_tar", "header checksum mismatch"),
    Case("empty-tar", [], [], shard=only(END), kept=()),
    Case("empty-tar-of-one-record", [], [], shard=only(bytes(10_240)), kept=()),
]

CONTIGUOUS = Entry(header(b"bad.json", len(ONE.data), b"7") + padded(ONE.data), "bad.json", ONE.data)
NON_UTF8 = b"caf\xe9.json"

ODD = [
    sound("name-long-gnu", named(f"{LONG}.json", gnu_name(f"{LONG}.json"), ONE), key=LONG),
    sound("name-long-pax", named(f"{LONG}.json", pax({"path": f"{LONG}.json"}), ONE), key=LONG),
    sound("name-long-pax-solaris", named(f"{LONG}.json", pax({"path": f"{LONG}.json"}, b"X"), ONE), key=LONG),
    sound("name-with-ustar-prefix", Entry(header(b"bad.json", len(ONE.data), prefix=b"a/b") + padded(ONE.data), "a/b/bad.json", ONE.data),
          key="a/b/bad"),
    sound("name-unicode-pax", named("ü/漢.json", pax({"path": "ü/漢.json"}), ONE), key="ü/漢"),
    sound("name-of-100-bytes", document("n" * 95), key="n" * 95),
    sound("size-by-pax", named("bad.json", pax({"size": str(len(ONE.data))}), Entry(header(b"bad.json") + padded(ONE.data), "", ONE.data))),
    sound("size-base-256", file("bad.json", ONE.data, size_field=b"\x80" + len(ONE.data).to_bytes(11, "big"))),
    sound("size-with-spaces", file("bad.json", ONE.data, size_field=b"%10o \0" % len(ONE.data))),
    sound("header-of-v7", Entry(header(b"bad.json", len(ONE.data), b"\0", magic=bytes(8)) + padded(ONE.data), "bad.json", ONE.data)),
    sound("header-of-gnu", file("bad.json", ONE.data, magic=b"ustar  \0")),
    sound("checksum-of-signed-characters", file("ü.json", ONE.data, is_signed=True), key="ü"),
    sound("contiguous-file", CONTIGUOUS),
    sound("global-pax-header", pax({"comment": "x" * 900}, b"g"), ONE),
    sound("pax-with-times-and-comments", named("bad.json", pax({"mtime": "1.5", "comment": "ü", "SCHILY.xattr.user.x": b"\xff\0"}), ONE)),
    sound("folders", special("a/", b"5"), Entry(header(b"b/", 0, b"\0")), ONE),
    sound("volume-label", Entry(header(b"label", 0, b"V")), ONE, notes={"skipped_members": ["label"]}),
    sound("pipe-and-devices", special("pipe.png", b"6"), special("dev.json", b"3"), special("dev", b"4"), ONE,
          notes={"skipped_members": ["pipe.png", "dev.json", "dev"]}),
    sound("link-that-states-a-size", Entry(header(b"l.png", 7000, b"2", link=b"x")), ONE, notes={"unreferenced_members": ["l.png"]}),
    sound("name-empty", file(b"", b"what am I"), ONE, notes={"unreferenced_members": [""]}),
    sound("name-that-is-a-suffix", file(".json", {"texts": ["hidden"]}), ONE, notes={"unreferenced_members": [".json"]}),
    sound("name-not-utf8-of-a-picture", file(b"caf\xe9.png", PNG), ONE, notes={"unreferenced_members": ["caf\\xe9.png"]}),
    Case("name-not-utf8-of-a-json", [file(NON_UTF8, ONE.data)],
         [Lost("not_utf8", "the name is not UTF-8", "caf\\xe9", "caf\\xe9.json")]),
    Case("name-not-utf8-that-spells-another", [file(NON_UTF8, ONE.data), file("caf\\xe9.json", {"texts": ["u"], "images": [None]})],
         [Lost("not_utf8", "the name is not UTF-8", "caf\\xe9", "caf\\xe9.json", ONE.data), Sample("caf\\xe9", {0: "u"})]),
    sound("name-with-leading-dot", file("./bad.json", ONE.data)),
    sound("name-with-leading-dots", named("bad.json", file(".//././bad.json", ONE.data))),
    sound("name-absolute", document("/abs/bad"), key="/abs/bad"),
    sound("name-that-climbs", document("../../bad"), key="../../bad"),
    sound("suffix-in-upper-case-json", file("bad.JSON", ONE.data)),
    Case("json-last", PICTURED[::-1], [Sample(images={1: PNG})]),
    Case("samples-interleaved", [*pictured(PNG)[:1], document("mid"), *pictured(PNG)[1:]], [Sample(images={1: PNG}), Sample("mid")]),
    sound("tape-record", ONE, shard=lambda entries: tar(entries).ljust(40_960, b"\0")),
    sound("gzip", ONE, file_name="shard.tar.gz", shard=lambda entries: gzip.compress(tar(entries))),
    sound("gzip-as-tgz", ONE, file_name="shard.tgz", shard=lambda entries: gzip.compress(tar(entries))),
    sound("gzip-called-tar", ONE, shard=lambda entries: gzip.compress(tar(entries))),
    sound("tar-called-gzip", ONE, file_name="shard.tar.gz"),
    sound("gzip-of-two-members", ONE, file_name="shard.tar.gz",
          shard=lambda entries: gzip.compress(tar(entries)[:2000]) + gzip.compress(tar(entries)[2000:])),
    sound("gzip-with-zeros-behind", ONE, file_name="shard.tar.gz", shard=lambda entries: gzip.compress(tar(entries)) + bytes(1000)),
]  # fmt: skip

PLAIN = tar(ALL)
STORED = gzip.compress(PLAIN, 0)  # one block that is not compressed: 15 bytes in front of it
FLIPPED = STORED[:1000] + bytes([STORED[1000] ^ 1]) + STORED[1001:]
BOMB = gzip.compress(bytes(1 << 20)) * 110


def gzipped(name: str, data: bytes, kind: str, words: str, offset: int, end: int, kept: list[str], *samples: Sample) -> Case:
    """``offset`` and ``end`` of what is damaged, in bytes of the tar inside as far as it can be trusted."""
    return Case(name, [ONE], [*samples, Damage(kind, words, offset, end)], shard=only(data), file_name="shard.tar.gz", kept=kept)


GZIP = [
    gzipped("gzip-cut", STORED[: START + 15 + 100], "truncated_tar", "the gzip stream is cut here", START, START + 100, ["before"]),
    gzipped("gzip-cut-in-its-checksum", STORED[:-3], "truncated_tar", "the gzip stream is cut here", WHOLE, len(PLAIN),
            ["before", "after"], Sample()),
    gzipped("gzip-cut-at-once", STORED[:12], "truncated_tar", "the gzip stream is cut here", 0, 0, []),
    gzipped("gzip-with-junk-behind", STORED + b"junk", "damaged_tar", "corrupt gzip, or none", WHOLE, len(PLAIN),
            ["before", "after"], Sample()),
    gzipped("gzip-checksum-wrong", FLIPPED, "damaged_tar", "incorrect data check", 0, 0, []),
    gzipped("gzip-of-noise", b"\x1f\x8b\x08" + b"?" * 500, "damaged_tar", "corrupt gzip", 0, 0, []),
    gzipped("gzip-bomb", BOMB, "damaged_tar", "unpacks to more than", 0, 0, []),
    gzipped("gzip-of-two-members-the-second-cut", gzip.compress(PLAIN[:START]) + gzip.compress(PLAIN[START:], 0)[:200], "truncated_tar",
            "the gzip stream is cut here", START, START + 185, ["before"]),
    gzipped("gzip-of-a-tar-cut-inside", gzip.compress(PLAIN[: START + 200]), "truncated_tar", "cut within a header, after 200 bytes",
            START, START + 200, ["before"]),
    gzipped("gzip-of-nothing", gzip.compress(b""), "truncated_tar", "the file is empty", 0, 0, []),
    no_tar("gzip-empty-file", b"", "truncated_tar", "the file is empty", file_name="shard.tar.gz"),
]

CASES = [*CUT, *DAMAGED, *NONE, *ODD, *GZIP]
