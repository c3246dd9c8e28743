"""Images that are none, are cut, lie about their size, or share a TIFF."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from mm_assets_tests.formats.hostile.outcomes import JPG, PNG, Case, Frame, Sample, pictured
from mm_assets_tests.formats.hostile.pictures import (
    big_tiff,
    bmp_of_size,
    directory_of,
    gif_of_size,
    grey_tiff,
    jpg_of_size,
    photograph,
    png_of,
    real_png_bomb,
    tiff_of,
    with_tag,
)
from mm_assets_tests.formats.hostile.shards import document, file
from mm_assets_tests.formats.images.pictures import KINDS
from mm_assets_tests.formats.images.test_opening import REFUSED

TIFF = "image/tiff"
NOISE = {kind: photograph(kind) for kind in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP")}
SUFFIX = {"JPEG": "jpg", "PNG": "png", "WEBP": "webp", "GIF": "gif", "TIFF": "tiff", "BMP": "bmp"}


def refused(
    name: str, data: bytes, words: str = "unreadable image: ", member: str = "bad.1.png", **sample: Any
) -> Case:
    """An image that comes with its bytes and an error."""
    return Case(name, pictured(data, member), [Sample(images={1: data}, faults={1: words}, **sample)])


def accepted(name: str, data: bytes, member: str = "bad.1.png", **sample: Any) -> Case:
    return Case(name, pictured(data, member), [Sample(images={1: data}, **sample)])


NONE = [
    refused("image-that-is-text", b"<html>404 not found</html>", "unreadable image: unknown image format"),
    refused("image-of-no-bytes", b"", "unreadable image: not an image: no bytes"),
    refused("image-of-one-byte", b"\x89"),
    refused("image-of-zeros", bytes(5000)),
    refused("image-that-is-a-tar", document().blocks),
    refused(
        "image-that-is-ppm",
        photograph("PPM"),
        "unreadable image: PPM images are not supported",
        "bad.ppm",
        types={1: None},
    ),
    refused(
        "image-that-is-ico",
        photograph("ICO"),
        "unreadable image: ICO images are not supported",
        "bad.ico",
        types={1: None},
    ),
    refused(
        "image-that-is-svg",
        b'<svg xmlns="http://www.w3.org/2000/svg"/>',
        "unreadable image: unknown",
        "bad.svg",
        types={1: None},
    ),
    refused(
        "image-that-is-pdf", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3", "unreadable image: ", "bad.pdf", types={1: None}
    ),
    *(
        refused(f"header-only-{SUFFIX[kind]}", data[:40], member=f"bad.1.{SUFFIX[kind]}")
        for kind, data in NOISE.items()
    ),
]

CUT = [
    *(
        refused(f"half-of-a-{SUFFIX[kind]}", data[: len(data) // 2], member=f"bad.1.{SUFFIX[kind]}")
        for kind, data in NOISE.items()
    ),
    *(
        refused(
            f"second-half-zeros-{SUFFIX[kind]}",
            data[: len(data) // 2].ljust(len(data), b"\0"),
            member=f"bad.1.{SUFFIX[kind]}",
        )
        for kind, data in NOISE.items()
        if kind in ("JPEG", "PNG")
    ),
    refused(
        "half-of-a-progressive-jpg",
        (data := photograph("JPEG", progressive=True))[: len(data) // 2],
        member="bad.1.jpg",
    ),
    refused(
        "half-of-a-lossless-webp",
        (data := photograph("WEBP", lossless=True))[: len(data) // 2],
        member="bad.1.webp",
    ),
    refused(
        "tiff-cut-in-its-directory", (data := grey_tiff(1))[: directory_of(data, 0) + 30], member="bad.1.tiff"
    ),
    refused("tiff-strip-outside", with_tag(grey_tiff(1), 0, 273, 0x7FFFFFFF), member="bad.1.tiff"),
]

UNOPENED = [
    refused(name.replace(" ", "-"), REFUSED[name], "unreadable image: Pillow cannot open it: ")
    for name in ("png zTXt bomb", "png frame outside")
]

BOMBS = [
    refused("bomb-png-by-header", png_of(50_000, 50_000, 8, b"x"), "decompression bomb: 50000x50000 pixels"),
    refused("bomb-png-that-unpacks", real_png_bomb(), "decompression bomb: 30000x20000 pixels"),
    refused("bomb-png-largest", png_of(2**31 - 1, 2**31 - 1, 8, b"x"), "decompression bomb: "),
    refused("bomb-jpg", jpg_of_size(65_535, 65_535), "decompression bomb: 65535x65535", "bad.1.jpg"),
    refused("bomb-gif", gif_of_size(65_535, 65_535), "decompression bomb: 65535x65535", "bad.1.gif"),
    refused("bomb-bmp", bmp_of_size(2**30, 2**30), "decompression bomb: ", "bad.1.bmp"),
    refused(
        "bomb-tiff",
        with_tag(with_tag(grey_tiff(1), 0, 256, 2**31), 0, 257, 2**31),
        "decompression bomb: ",
        "bad.1.tiff",
    ),
    refused("png-of-no-pixels", png_of(0, 10, 8, b"x"), "unreadable image: png image of 0x10 pixels"),
]

PRESERVED = [
    Case(
        "every-kind-of-picture",
        [
            file(
                "bad.json", {"texts": [], "images": [f"{n}.{suffix}" for n, (suffix, _) in enumerate(KINDS)]}
            ),
            *(file(f"bad.{n}.{suffix}", make(n)) for n, (suffix, make) in enumerate(KINDS)),
        ],
        [
            Sample(
                texts={},
                images={n: make(n) for n, (_, make) in enumerate(KINDS)},
                said={"lengths": {"texts": 0}},
                tokens={n: f"{n}.{suffix}" for n, (suffix, _) in enumerate(KINDS)},
            )
        ],
    ),
    accepted("suffix-of-another-format", PNG, "bad.1.jpg"),
    accepted("suffix-in-upper-case", JPG, "BAD.1.JPEG"),
    accepted("suffix-unknown", PNG, "bad.1.picture", types={1: "image/png"}),
    accepted("no-suffix", JPG, "picture", types={1: "image/jpeg"}),
    accepted("stray-bytes-behind-a-jpg", NOISE["JPEG"] + b"<!-- served by -->", "bad.1.jpg"),
    accepted("zeros-behind-a-jpg", NOISE["JPEG"] + bytes(700), "bad.1.jpg"),
    accepted("stray-bytes-behind-a-png", NOISE["PNG"] + b"stray"),
    accepted("png-without-its-end", NOISE["PNG"][:-12]),
    accepted("stray-bytes-behind-a-gif", NOISE["GIF"] + b"stray", "bad.1.gif"),
    accepted("one-frame-tiff-by-name", tiff_of(1), "bad.tiff"),
    accepted("tiff-that-leads-back-to-its-only-frame", grey_tiff(1)[:-4] + grey_tiff(1)[4:8], "bad.1.tiff"),
]


def pages(
    name: str, tiff: bytes, frames: dict[int, Any], faults: dict[int, str] | None = None, **more: Any
) -> Case:
    """A sample with a text at 0 and opaque references to frames from 1 on."""
    tokens = {position: f"page_{position}_image_9" for position in frames}
    payload = {"texts": ["t", *[None] * len(frames)], "images": [None, *tokens.values()]}
    sample = Sample(images=frames, faults=faults or {}, tokens=tokens)
    return Case(name, [file("bad.json", payload), file("bad.tiff", tiff)], [sample], **more)


GREY, COLOUR, BIG, BIG_ENDIAN = grey_tiff(3), tiff_of(3, compression="jpeg"), big_tiff(2), big_tiff(2, ">")
BROKEN = with_tag(GREY, 1, 273, 0x7FFFFFFF)
HOLLOW = with_tag(with_tag(GREY, 1, 256, 40_000), 1, 257, 40_000)
HUGE = with_tag(with_tag(HOLLOW, 1, 278, 40_000), 1, 259, 8)  # deflated, all of it in one strip
CUT_CHAIN = GREY[: directory_of(GREY, 1) + 5]
LOST = "failed to extract frame"
LONE = tiff_of(1)

FRAMES = [
    pages("frames", GREY, {1: Frame(GREY, 0), 2: Frame(GREY, 1), 3: Frame(GREY, 2)}),
    pages("frames-of-jpeg-in-tiff", COLOUR, {1: Frame(COLOUR, 0), 2: Frame(COLOUR, 1), 3: Frame(COLOUR, 2)}),
    pages("frames-of-bigtiff", BIG, {1: Frame(BIG, 0), 2: Frame(BIG, 1)}),
    pages(
        "frames-of-big-endian-bigtiff",
        BIG_ENDIAN,
        {1: Frame(BIG_ENDIAN, 0), 2: Frame(BIG_ENDIAN, 1)},
        dict.fromkeys((1, 2), "unreadable image: Pillow cannot open it: "),
    ),
    pages("frame-of-a-one-frame-tiff-is-the-file", LONE, {1: LONE}),
    pages(
        "fewer-frames-than-references",
        GREY,
        {1: Frame(GREY, 0), 2: Frame(GREY, 1), 3: Frame(GREY, 2), 4: None},
        {4: "dangling reference: frame 3 of 'bad.tiff'"},
    ),
    pages(
        "more-frames-than-references",
        GREY,
        {1: Frame(GREY, 0), 2: Frame(GREY, 1)},
        notes={"unreferenced_frames": ["bad.tiff: 1 of 3 frames"]},
    ),
    pages(
        "one-damaged-frame",
        BROKEN,
        {1: Frame(GREY, 0), 2: None, 3: Frame(GREY, 2)},
        {2: f"{LOST} 1 from 'bad.tiff': "},
    ),
    pages(
        "one-frame-of-too-few-bytes",
        HOLLOW,
        {1: Frame(GREY, 0), 2: None, 3: Frame(GREY, 2)},
        {2: f"{LOST} 1 from 'bad.tiff': "},
    ),
    pages(
        "one-frame-is-a-bomb",
        HUGE,
        {1: Frame(GREY, 0), 2: Frame(HUGE, 1), 3: Frame(GREY, 2)},
        {2: "decompression bomb: 40000x40000 pixels"},
    ),
    pages(
        "chain-of-frames-is-cut",
        CUT_CHAIN,
        {1: Frame(GREY, 0), 2: None, 3: None},
        {2: f"{LOST} 1 from 'bad.tiff': ", 3: f"{LOST} 2 from 'bad.tiff': "},
    ),
    pages(
        "chain-of-frames-is-a-loop",
        GREY[:-4] + GREY[4:8],
        {n + 1: Frame(GREY, n) if n < 3 else None for n in range(4)},
        {4: f"{LOST} 3 from 'bad.tiff': TIFF directories form a loop"},
    ),
    pages(
        "tiff-that-is-none",
        b"II*\0 or not",
        {1: None, 2: None},
        {1: f"{LOST} 0 from 'bad.tiff': ", 2: f"{LOST} 1 from 'bad.tiff': "},
    ),
    pages(
        "tiff-of-no-bytes",
        b"",
        {1: None, 2: None},
        {1: f"{LOST} 0 from 'bad.tiff': ", 2: f"{LOST} 1 from 'bad.tiff': "},
    ),
    Case(
        "frames-by-the-name-of-their-tiff",
        [
            file("bad.json", {"texts": ["t", None, None], "images": [None, "x.tif", "x.tif"]}),
            file("x.tif", GREY),
        ],
        [Sample(images={1: Frame(GREY, 0), 2: Frame(GREY, 1)}, tokens={1: "x.tif", 2: "x.tif"})],
        notes={"unreferenced_frames": ["x.tif: 1 of 3 frames"]},
    ),
    Case(
        "frames-of-a-tiff-that-two-samples-share",
        [
            file("bad.json", {"texts": ["t", None], "images": [None, "p"], "pdf": "x.tiff"}),
            file("worse.json", {"texts": ["t", None, None], "images": [None, "p", "q"], "pdf": "x.tiff"}),
            file("x.tiff", GREY),
        ],
        [
            Sample(images={1: Frame(GREY, 0)}, tokens={1: "p"}, said={"fields": {"pdf": "x.tiff"}}),
            Sample(
                "worse",
                images={1: Frame(GREY, 0), 2: Frame(GREY, 1)},
                tokens={1: "p", 2: "q"},
                said={"fields": {"pdf": "x.tiff"}},
            ),
        ],
        options={"image_member_field": "pdf"},
        notes={"unreferenced_frames": ["x.tiff: 1 of 3 frames"]},
    ),
    Case(
        "frames-of-a-stated-member",
        [
            file("bad.json", {"texts": ["t", None], "images": [None, "p"], "pdf": "scan.tiff"}),
            file("scan.tiff", LONE),
        ],
        [Sample(images={1: LONE}, tokens={1: "p"}, said={"fields": {"pdf": "scan.tiff"}})],
        options={"image_member_field": "pdf"},
    ),
    Case(
        "stated-member-is-missing",
        [file("bad.json", {"texts": ["t", None], "images": [None, "p"], "pdf": "scan.tiff"})],
        [
            Sample(
                images={1: None},
                said={"fields": {"pdf": "scan.tiff"}},
                faults={1: "missing member 'scan.tiff'"},
            )
        ],
        options={"image_member_field": "pdf"},
    ),
]

_OTHER = "0" * 64
OTHERS = [
    Case(
        "image-with-another-digest-than-declared",
        [
            file("bad.json", {"texts": ["t", None], "images": [None, "bad.1.png"], "sha256": _OTHER}),
            file("bad.1.png", PNG),
        ],
        [Sample(images={1: PNG}, extras={"sha256": _OTHER}, faults={1: "digest mismatch: its sha256 is "})],
        columns={"sha256": pa.string()},
    ),
]

CASES = [*NONE, *CUT, *UNOPENED, *BOMBS, *PRESERVED, *FRAMES, *OTHERS]
