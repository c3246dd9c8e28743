"""What Pillow opens, and what it does not: no header that passes without asking it is one that it refuses."""

from __future__ import annotations

import io
import random
import struct
import warnings
import zlib
from collections.abc import Callable

import pytest
from PIL import Image

from mm_assets.filters.readable import ReadableImages
from mm_assets.filters.scores import MAX_PIXELS
from mm_assets.formats.images import probe
from mm_assets.formats.images.pixels import check_opens, surely_opens
from mm_assets.model.errors import ImageError
from mm_assets_tests.formats.datasets import batch_of, item
from mm_assets_tests.formats.images.pictures import KINDS, picture
from mm_assets_tests.formats.images.tiff_tools import Page, grey_page, write_tiff
from mm_assets_tests.formats.images.variants import WHOLE, chunk, encoded, turned

JPG, PNG = encoded("jpg"), encoded("png")
LARGE = zlib.compress(bytes(2 << 20))


def png_with(*chunks: bytes) -> bytes:
    """A PNG with chunks in front of its pixels."""
    return PNG[:33] + b"".join(chunks) + PNG[33:]


def png_header(bits: int, colour: int, category: int = 0) -> bytes:
    return PNG[:8] + chunk(b"IHDR", struct.pack(">IIBBBBB", 61, 43, bits, colour, 0, category, 0)) + PNG[33:]


def frame_control(number: int, width: int = 61) -> bytes:
    return chunk(b"fcTL", struct.pack(">IIIIIHHBB", number, width, 43, 0, 0, 1, 10, 0, 0))


def segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def jpg_with(*segments: bytes) -> bytes:
    """A JPEG with segments in the place of its APP0."""
    return JPG[:2] + b"".join(segments) + JPG[4 + struct.unpack_from(">H", JPG, 4)[0] :]


def exif(tag: int, kind: int, values: int) -> bytes:
    """An EXIF block of a unit and one other tag, with room for values behind it."""
    entries = struct.pack("<HHII", 296, 3, 1, 2) + struct.pack("<HHII", tag, kind, values, 38)
    return segment(
        0xE1, b"Exif\0\0II*\0\x08\0\0\0\x02\0" + entries + bytes(4) + struct.pack("<II", 72, 1) * 4
    )


def bmp(bits: int, compression: int, masks: bytes = b"", body: bytes = bytes(64)) -> bytes:
    info = struct.pack(
        "<IiiHHIIiiII", 40, 4, 4, 1, bits, compression, len(body), 0, 0, 4 if bits < 9 else 0, 0
    )
    start = 14 + len(info) + len(masks)
    return b"BM" + struct.pack("<IHHI", start + len(body), 0, 0, start) + info + masks + body


def tiff(**changed: tuple[int, int]) -> bytes:
    page = grey_page(8, 6, bytes(48))
    tags = {"bits": 258, "compression": 259, "photometric": 262}
    return write_tiff(
        [Page(page.tags | {tags[name]: value for name, value in changed.items()}, page.payload)]
    )


REFUSED: dict[str, bytes] = {
    "png zTXt bomb": png_with(chunk(b"zTXt", b"Comment\0\0" + LARGE)),
    "png iTXt bomb": png_with(chunk(b"iTXt", b"Comment\0\1\0\0\0" + LARGE)),
    "png iCCP bomb": png_with(chunk(b"iCCP", b"profile\0\0" + LARGE)),
    "png text of another compression": png_with(chunk(b"zTXt", b"Comment\0\7x")),
    "png chunk with another checksum": png_with(chunk(b"gAMA", bytes(4))[:-1] + b"?"),
    "png short gAMA": png_with(chunk(b"gAMA", bytes(3))),
    "png short tRNS": png_with(chunk(b"tRNS", bytes(4))),
    "png animation control cut": png_with(chunk(b"acTL", bytes(7))),
    "png frame outside": png_with(chunk(b"acTL", b"\0\0\0\2" + bytes(4)), frame_control(0, width=62)),
    "png frames out of order": png_with(chunk(b"acTL", b"\0\0\0\2" + bytes(4)), frame_control(3)),
    "png of unknown mode": png_header(8, 1),
    "png of unknown filters": png_header(8, 2, category=1),
    "bmp of 2 bits": bmp(2, 0),
    "bmp with odd bit fields": bmp(16, 3, struct.pack("<III", 0x7, 0x38, 0x1C0)),
    "bmp with a JPEG": bmp(24, 4, body=JPG),
    "bmp with a PNG": bmp(24, 5, body=PNG),
    "jpg of 12 bits": JPG.replace(b"\xff\xc0\0\x11\x08", b"\xff\xc0\0\x11\x0c"),
    "jpg with a table cut": jpg_with(segment(0xDB, bytes(40))),
    "jpg with Photoshop's block cut": jpg_with(segment(0xED, b"Photoshop 3.0\08BIM\4\4")),
    "jpg with a profile cut": jpg_with(segment(0xE2, b"ICC_PROFILE\0")),
    "jpg with EXIF of another type": jpg_with(exif(282, 7, 1)),
    "tiff of 3 bits": tiff(bits=(3, 3)),
    "tiff of unknown compression": tiff(compression=(3, 12345)),
    "tiff of unknown colours": tiff(photometric=(3, 77)),
    "webp of no frame": encoded("webp", icc_profile=b"x" * 101).replace(b"VP8 ", b"VP8?", 1),
    "gif of no frame": b"GIF89a\x08\0\x08\0\0\0\0;",
}
"""Images by name, whose size is known, and which Pillow does not open."""


def pillow_opens(data: bytes) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with Image.open(io.BytesIO(data)):
                return True
        except Exception:  # noqa: BLE001 (plugins raise what they like)
            return False


def error_of(data: bytes, **options: float) -> str | None:
    batch = batch_of([item("s"), item("s", 0, "image", binary_content=data)])
    (row,) = ReadableImages(**options)(batch).batch.data.to_pylist()[1:]  # type: ignore[arg-type]
    assert row["binary_content"] == data
    error: str | None = row["materialize_error"]
    return error


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_pillow_at_open(name: str) -> None:
    data = REFUSED[name]
    kind = name.partition(" ")[0]
    assert probe(data).format == kind
    assert not pillow_opens(data)
    with pytest.raises(ImageError, match=r"^Pillow cannot open it: [^\n]+$"):
        check_opens(data, kind)
    error = error_of(data)
    assert error is not None
    assert error.startswith("unreadable image: ")
    if ": cut or damaged: " not in error:
        assert error_of(data, decode_fraction=1.0) == error


@pytest.mark.parametrize("data", [*WHOLE.values(), *(picture(n)[1] for n in range(len(KINDS)))])
def test_whole_images_open(data: bytes) -> None:
    check_opens(data, probe(data).format)


def test_what_pillow_is_not_asked_about() -> None:
    """The usual headers of the four formats; else it would take twice as long to read a shard."""
    usual = {
        "jpg": JPG,
        "jpg exif": encoded("jpg", exif=turned(6)),
        "jpg resolution": encoded("jpg", dpi=(72, 72), exif=turned(6), icc_profile=b"x" * 99, comment="c"),
        "png": PNG,
        "png text": png_with(
            chunk(b"tEXt", b"Software\0x"), chunk(b"pHYs", bytes(9)), chunk(b"gAMA", bytes(4))
        ),
        "webp": encoded("webp"),
        "webp lossless": encoded("webp", lossless=True),
        "tiff jpeg": encoded("tiff", compression="jpeg", dpi=(72, 72)),
        "tiff deflate": encoded("tiff", "L", compression="tiff_adobe_deflate"),
    }
    assert [name for name, data in usual.items() if not surely_opens(memoryview(data), name.split()[0])] == []


def _replaced(pick: random.Random, data: bytearray, end: int) -> None:
    for _ in range(pick.choice((1, 1, 2, 4))):
        data[pick.randrange(end)] = pick.choice((0, 1, 2, 3, 7, 255, pick.randrange(256)))


def _cut(pick: random.Random, data: bytearray, end: int) -> None:
    at = pick.randrange(2, end)
    del data[at : at + pick.randrange(1, 40)]


def _twice(pick: random.Random, data: bytearray, end: int) -> None:
    at, size = pick.randrange(2, end), pick.randrange(1, 80)
    data[at:at] = data[at : at + size]


CHANGES: tuple[Callable[[random.Random, bytearray, int], None], ...] = (_replaced, _replaced, _cut, _twice)


def _with_sums(data: bytes) -> bytes:
    """The PNG with the checksums that its chunks should have."""
    whole, at = bytearray(data), 8
    while at + 12 <= len(whole):
        end = at + 8 + int.from_bytes(whole[at : at + 4], "big")
        whole[end : end + 4] = struct.pack(">I", zlib.crc32(whole[at + 4 : end]))
        at = end + 4
    return bytes(whole[: len(data)])


PLAIN = {
    "jpg": [JPG, encoded("jpg", "L"), encoded("jpg", "CMYK"), encoded("jpg", progressive=True),
            encoded("jpg", exif=turned(6)), encoded("jpg", dpi=(72, 72), icc_profile=b"x" * 99, comment="c"),
            jpg_with(exif(282, 5, 1)), jpg_with(segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x/>"))],
    "png": [PNG, encoded("png", "1"), encoded("png", "P"), encoded("png", "LA"),
            png_with(chunk(b"tEXt", b"a\0b"), chunk(b"pHYs", bytes(9)), chunk(b"gAMA", bytes(4)),
                     chunk(b"tRNS", bytes(6)), chunk(b"cHRM", bytes(32)), chunk(b"sRGB", b"\0")),
            png_with(chunk(b"acTL", b"\0\0\0\2" + bytes(4)), frame_control(0))],
    "webp": [encoded("webp"), encoded("webp", lossless=True), encoded("webp", icc_profile=b"x" * 101)],
    "tiff": [encoded("tiff", mode, size=(8, 6), compression=compression, **more)
             for mode, compression in (("RGB", "jpeg"), ("RGB", "tiff_lzw"), ("L", "jpeg"), ("YCbCr", "jpeg"),
                                       ("L", "tiff_adobe_deflate"), ("CMYK", "jpeg"), ("RGBA", "tiff_lzw"))
             for more in ({}, {"dpi": (72, 72), "software": "x" * 9, "tiffinfo": {274: 6}})],
}  # fmt: skip


@pytest.mark.parametrize("kind", PLAIN)
def test_what_surely_opens_does(kind: str) -> None:
    """Over headers with bytes replaced, left out and repeated: Pillow opens what passes without asking it."""
    pick = random.Random(kind)
    passed = refused = 0
    for _ in range(4000):
        data = bytearray(pick.choice(PLAIN[kind]))
        end = min(len(data), 760 if kind in ("jpg", "tiff") else 300)
        pick.choice(CHANGES)(pick, data, end)
        changed = bytes(data)
        if kind == "png" and pick.random() < 0.8:
            changed = _with_sums(changed)
        try:
            info = probe(changed)
        except ImageError:
            continue
        if info.format != kind or info.width * info.height > MAX_PIXELS:
            continue
        opens = pillow_opens(changed)
        if surely_opens(memoryview(changed), kind):
            passed += 1
            assert opens, changed[:end].hex()
        refused += not opens
    assert passed > 400
    assert refused > 40


def test_more_pixels_than_pillow_opens_are_allowed_by_who_says_so() -> None:
    data = encoded("webp", icc_profile=b"x" * 101)
    large = data[:24] + struct.pack("<I", 15_999)[:3] + struct.pack("<I", 15_999)[:3] + data[30:]
    assert str(error_of(large)).startswith("decompression bomb: 16000x16000 pixels")
    assert error_of(large, max_pixels=1 << 28) is None
