"""Tars packed by gzip: whole, cut, damaged, and none at all."""

from __future__ import annotations

import gzip

from mm_assets_tests.formats.hostile.cases_tar import ALL, ONE, START, no_tar, only, sound
from mm_assets_tests.formats.hostile.outcomes import Case, Damage, Sample
from mm_assets_tests.formats.hostile.shards import tar

PLAIN = tar(ALL)
STORED = gzip.compress(PLAIN, 0)  # one block that is not compressed: 15 bytes in front of it
FLIPPED = STORED[:1000] + bytes([STORED[1000] ^ 1]) + STORED[1001:]
BOMB = gzip.compress(bytes(1 << 20)) * 110


def gzipped(
    name: str, data: bytes, kind: str, words: str, offset: int, end: int, kept: list[str], *samples: Sample
) -> Case:
    """``offset`` and ``end`` of what is damaged, in bytes of the tar inside as far as it can be trusted."""
    return Case(
        name,
        [ONE],
        [*samples, Damage(kind, words, offset, end)],
        shard=only(data),
        file_name="shard.tar.gz",
        kept=kept,
    )


CASES = [
    sound("gzip", ONE, file_name="shard.tar.gz", shard=lambda entries: gzip.compress(tar(entries))),
    sound("gzip-as-tgz", ONE, file_name="shard.tgz", shard=lambda entries: gzip.compress(tar(entries))),
    sound("gzip-called-tar", ONE, shard=lambda entries: gzip.compress(tar(entries))),
    sound("tar-called-gzip", ONE, file_name="shard.tar.gz"),
    sound(
        "gzip-of-two-members",
        ONE,
        file_name="shard.tar.gz",
        shard=lambda entries: gzip.compress(tar(entries)[:2000]) + gzip.compress(tar(entries)[2000:]),
    ),
    sound(
        "gzip-with-zeros-behind",
        ONE,
        file_name="shard.tar.gz",
        shard=lambda entries: gzip.compress(tar(entries)) + bytes(1000),
    ),
    gzipped(
        "gzip-cut",
        STORED[: START + 15 + 100],
        "truncated_tar",
        "the gzip stream is cut here",
        START,
        START + 100,
        ["before"],
    ),
    gzipped(
        "gzip-cut-in-its-checksum",
        STORED[:-3],
        "truncated_tar",
        "the gzip stream is cut here",
        len(PLAIN),
        len(PLAIN),
        ["before", "after"],
        Sample(),
    ),
    gzipped("gzip-cut-at-once", STORED[:12], "truncated_tar", "the gzip stream is cut here", 0, 0, []),
    gzipped(
        "gzip-with-junk-behind",
        STORED + b"junk",
        "damaged_tar",
        "corrupt gzip, or none",
        len(PLAIN),
        len(PLAIN),
        ["before", "after"],
        Sample(),
    ),
    gzipped("gzip-checksum-wrong", FLIPPED, "damaged_tar", "incorrect data check", 0, 0, []),
    gzipped("gzip-of-noise", b"\x1f\x8b\x08" + b"?" * 500, "damaged_tar", "corrupt gzip", 0, 0, []),
    gzipped("gzip-bomb", BOMB, "damaged_tar", "unpacks to more than", 0, 0, []),
    gzipped(
        "gzip-of-two-members-the-second-cut",
        gzip.compress(PLAIN[:START]) + gzip.compress(PLAIN[START:], 0)[:200],
        "truncated_tar",
        "the gzip stream is cut here",
        START,
        START + 185,
        ["before"],
    ),
    gzipped(
        "gzip-of-a-tar-cut-inside",
        gzip.compress(PLAIN[: START + 200]),
        "truncated_tar",
        "cut within a header, after 200 bytes",
        START,
        START + 200,
        ["before"],
    ),
    gzipped("gzip-of-nothing", gzip.compress(b""), "truncated_tar", "the file is empty", 0, 0, []),
    no_tar("gzip-empty-file", b"", "truncated_tar", "the file is empty", file_name="shard.tar.gz"),
]
