"""The size that probe tells is the size that Pillow sees."""

from __future__ import annotations

import io
import random
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mm_assets.formats.images import CONTENT_TYPES, EXTENSIONS, ImageInfo, probe, sniff
from mm_assets.model.errors import ImageError
from mm_assets_tests.formats.images.line_budget import line_budget
from mm_assets_tests.formats.images.tiff_tools import grey_page, write_tiff
from mm_assets_tests.formats.images.variants import turned

PILLOW = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP", "gif": "GIF", "tiff": "TIFF", "bmp": "BMP"}


def picture(kind: str, mode: str = "RGB", size: tuple[int, int] = (57, 31), **options: Any) -> bytes:
    out = io.BytesIO()
    noise = Image.frombytes("RGB", size, random.Random(7).randbytes(3 * size[0] * size[1]))
    noise.convert(mode).save(out, PILLOW[kind], **options)
    return out.getvalue()


VARIANTS: list[tuple[str, str, dict[str, Any]]] = [
    ("jpg", "RGB", {}),
    ("jpg", "L", {"progressive": True}),
    ("jpg", "CMYK", {"optimize": True}),
    ("jpg", "RGB", {"icc_profile": b"x" * 200_000, "comment": b"\xff\xc0 not a header"}),
    ("png", "RGB", {}),
    ("png", "1", {}),
    ("png", "P", {}),
    ("png", "RGBA", {"compress_level": 0}),
    ("webp", "RGB", {}),
    ("webp", "RGBA", {}),
    ("webp", "RGB", {"lossless": True}),
    ("webp", "RGB", {"icc_profile": b"x" * 101}),
    ("gif", "P", {}),
    ("bmp", "RGB", {}),
    ("bmp", "1", {}),
    ("tiff", "RGB", {}),
    ("tiff", "RGB", {"compression": "jpeg", "big_tiff": True}),
]


@pytest.mark.parametrize(("kind", "mode", "options"), VARIANTS)
@pytest.mark.parametrize("size", [(57, 31), (1, 1), (300, 2)])
def test_every_format(kind: str, mode: str, options: dict[str, Any], size: tuple[int, int]) -> None:
    data = picture(kind, mode, size, **options)
    expected = ImageInfo(*size, kind, 1)
    for source in (data, bytearray(data), memoryview(data), memoryview(data).cast("b")):
        assert probe(source) == expected
        assert sniff(source) == kind
    assert expected.content_type == CONTENT_TYPES[kind]


@pytest.mark.parametrize("kind", ["jpg", "png", "webp", "tiff"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation(kind: str, orientation: int) -> None:
    info = probe(picture(kind, exif=turned(orientation)))
    assert info == ImageInfo(57, 31, kind, orientation)
    shown = (31, 57) if orientation >= 5 else (57, 31)
    assert (info.display_width, info.display_height) == shown


@pytest.mark.parametrize("orientation", [0, 9, 60000])
@pytest.mark.parametrize("kind", ["jpg", "png", "webp", "tiff"])
def test_meaningless_orientation(kind: str, orientation: int) -> None:
    assert probe(picture(kind, exif=turned(orientation))).orientation == 1


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"MM",
        b"MM\0*\0\0\0\x08",
        b"II*\0\xff\xff\xff\xff" + bytes(20),
        b"MM\0*\0\0\0\x08\xff\xff" + bytes(20),
    ],
)
def test_damaged_exif_is_no_orientation(block: bytes) -> None:
    segment = b"Exif\0\0" + block
    jpeg = picture("jpg")
    data = jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment + jpeg[2:]
    assert probe(data) == ImageInfo(57, 31, "jpg", 1)
    assert probe(png_with(b"eXIf", block, front=True)) == ImageInfo(57, 31, "png", 1)


def png_with(name: bytes, body: bytes, front: bool) -> bytes:
    data = picture("png")
    chunk = struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
    at = 33 if front else len(data) - 12
    return data[:at] + chunk + data[at:]


@pytest.mark.parametrize("front", [True, False])
def test_png_exif_on_either_side_of_the_pixels(front: bool) -> None:
    block = turned(8).tobytes()[6:]
    assert probe(png_with(b"eXIf", block, front)) == ImageInfo(57, 31, "png", 8)


def exif_segment(orientation: int) -> bytes:
    body = turned(orientation).tobytes()
    return b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body


def test_jpeg_oddities() -> None:
    data = picture("jpg")
    plain = ImageInfo(57, 31, "jpg", 1)
    frame = data.index(b"\xff\xc0")
    scan = data.index(b"\xff\xda")
    assert probe(data[:2] + b"\xff" * 300 + data[2:]) == plain  # fill bytes
    assert probe(data[:frame] + b"stray\xff\x00data" + data[frame:]) == plain
    assert probe(data[:frame] + b"\xff\x01\xff\xd0" + data[frame:]) == plain  # markers without a segment
    assert probe(data[:scan] + exif_segment(6) + data[scan:]) == ImageInfo(57, 31, "jpg", 6)
    assert probe(data[:2] + exif_segment(3) + exif_segment(6) + data[2:]).orientation == 3
    for marker in set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}:
        assert probe(data[: frame + 1] + bytes([marker]) + data[frame + 2 :]) == plain
    for marker in (0xC4, 0xC8, 0xCC):
        with pytest.raises(ImageError, match="without a frame header"):
            probe(data[: frame + 1] + bytes([marker]) + data[frame + 2 :])


@pytest.mark.parametrize(("kind", "mode", "options"), VARIANTS)
def test_prefix_with_the_header_is_enough(kind: str, mode: str, options: dict[str, Any]) -> None:
    data = picture(kind, mode, (400, 300), **options)
    need = {"png": 33, "webp": 30, "gif": 10, "bmp": 26}.get(kind)
    if options.get("lossless"):
        need = 25
    if kind == "jpg":
        start = 2
        while data[start + 1] not in (0xC0, 0xC2):
            start += 2 + struct.unpack_from(">H", data, start + 2)[0]
        need = start + 10
    if need is not None:
        assert probe(data[:need]) == ImageInfo(400, 300, kind, 1)
        for cut in {*range(min(need, 100)), need - 1}:
            with pytest.raises(ImageError):
                probe(data[:cut])


def test_tiff_prefix() -> None:
    data = b"II*\0\x08\0\0\0\x02\0" + struct.pack("<HHIIHHII", 256, 3, 1, 70, 257, 4, 1, 60)
    assert probe(data) == ImageInfo(70, 60, "tiff", 1)
    with pytest.raises(ImageError, match="claims 2 entries"):
        probe(data[:-1])


@pytest.mark.parametrize(("order", "big"), [("<", False), (">", False), ("<", True), (">", True)])
def test_tiff_layouts(order: str, big: bool) -> None:
    page = grey_page(300, 7, bytes(2100))
    page.tags[274] = (3, 5)
    info = probe(write_tiff([page, grey_page(1, 1, b"a")], order, big))
    assert info == ImageInfo(300, 7, "tiff", 5)
    assert (info.display_width, info.display_height) == (7, 300)


def test_bmp_headers() -> None:
    core = b"BM" + bytes(12) + struct.pack("<IHHHH", 12, 640, 480, 1, 24)
    assert probe(core) == ImageInfo(640, 480, "bmp", 1)
    top_down = b"BM" + bytes(12) + struct.pack("<Iii", 40, 640, -480) + bytes(28)
    assert probe(top_down) == ImageInfo(640, 480, "bmp", 1)
    with pytest.raises(ImageError, match="-640x480"):
        probe(b"BM" + bytes(12) + struct.pack("<Iii", 40, -640, 480) + bytes(28))
    with pytest.raises(ImageError, match="damaged"):
        probe(b"BM" + bytes(12) + struct.pack("<Iii", 40, 640, -(1 << 31) + 9) + bytes(28))
    assert sniff(b"BMW is a maker of cars, not a picture") is None


def png_header(width: int, height: int) -> bytes:
    ihdr = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n\0\0\0\r" + ihdr + struct.pack(">I", zlib.crc32(ihdr))


def test_huge_images_are_measured_and_empty_ones_refused() -> None:
    assert probe(png_header(100_000, 90_000)) == ImageInfo(100_000, 90_000, "png", 1)
    for empty in (png_header(0, 5), png_header(5, 0), b"GIF89a\0\0\x05\0" + bytes(20)):
        with pytest.raises(ImageError, match="0x5|5x0"):
            probe(empty)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no bytes"),
        (b"\0" * 100, "unknown image format"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "unknown image format"),
        (b'{"json": true}', "unknown image format"),
        (b"\xff\xd8\xff", "cut short"),
        (b"\xff\xd8\xff\xd9", "without a frame header"),
        (b"\xff\xd8\xff\xe0\0\x01" + bytes(50), "segment of 1 bytes"),
        (b"\xff\xd8\xff\xc0\0\x11\x08\0\x05\0\x05\0" + bytes(50), "frame header is damaged"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\x04CgBI" + bytes(50), "IHDR"),
        (png_header(5, 5)[:20] + b"\x01" + png_header(5, 5)[21:], "checksum"),
        (b"RIFF\x20\0\0\0WEBPVP8 " + bytes(40), "key frame"),
        (b"RIFF\x20\0\0\0WEBPVP8L" + bytes(40), "lossless header"),
        (b"RIFF\x20\0\0\0WEBPJUNK" + bytes(40), "unknown chunk"),
        (b"II*\0\x08\0\0\0\x01\0" + bytes(20), "no width"),
    ],
)
def test_what_is_no_image(data: bytes, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        probe(data)


@pytest.mark.parametrize("kind", ["JPEG2000", "ICO", "PPM", "TGA", "AVIF"])
def test_formats_that_we_do_not_keep(kind: str) -> None:
    out = io.BytesIO()
    try:
        Image.new("RGB", (20, 20)).save(out, kind)
    except (KeyError, OSError):
        pytest.skip(f"this Pillow does not write {kind}")
    with pytest.raises(ImageError, match="not supported|unknown"):
        probe(out.getvalue())


def test_pillow_reads_what_only_it_knows() -> None:
    # A byte order mark that contradicts its magic number: Pillow and libtiff read it, the standard does not
    # know it.
    odd = bytearray(picture("tiff", exif=turned(6)))
    odd[2:4] = b"\0*"
    assert sniff(bytes(odd)) is None
    assert probe(bytes(odd)) == ImageInfo(57, 31, "tiff", 6)
    with pytest.raises(ImageError, match="cannot be read|tiff image"):
        probe(bytes(odd[:8]))


def test_maps() -> None:
    assert set(CONTENT_TYPES) == {"jpg", "png", "webp", "gif", "tiff", "bmp"}
    assert EXTENSIONS["image/jpeg"] == "jpg"
    assert {EXTENSIONS[content_type] for content_type in CONTENT_TYPES.values()} == set(CONTENT_TYPES)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xd8" + b"\xff" * 20_000_000,
        b"\xff\xd8\xff\xe0\0\x02" + b"\xff\0" * 10_000_000,
        b"\xff\xd8" + b"\xff\xd0" * 10_000_000,
        b"\xff\xd8" + b"\xff\xe0\0\x02" * 5_000_000,
        png_header(5, 5) + b"\0\0\0\0IDATabcd" * 1_000_000,
        b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\x08\0\0\0\x05\0\0\x05\0\0" + b"JUNK\0\0\0\0" * 1_000_000,
    ],
    ids=["fill", "stray", "restart", "segments", "chunks", "riff"],
)
def test_hostile_headers_stay_cheap(data: bytes) -> None:
    try:
        with line_budget():
            assert probe(data).format in ("png", "webp")
    except ImageError:
        assert data.startswith(b"\xff\xd8")


SEEDS = [picture(kind, mode, **options) for kind, mode, options in VARIANTS if "icc_profile" not in options]
SEEDS += [picture(kind, exif=turned(6)) for kind in ("jpg", "png", "webp", "tiff")]


def check_damaged(data: bytes) -> None:
    try:
        with line_budget():
            info = probe(data)
    except ImageError:
        return
    assert info.width > 0
    assert info.height > 0
    assert info.orientation in range(1, 9)
    assert info.format in CONTENT_TYPES
    try:
        with Image.open(io.BytesIO(data)) as image:
            seen = image.size
    except Exception:  # noqa: BLE001 Pillow looks at more than the header and may refuse, in its own ways
        return
    if info.format == "tiff":  # Pillow's size of a TIFF is the one shown
        assert (info.display_width, info.display_height) == seen
    elif info.format != "gif":  # Pillow grows the screen of a GIF to its first frame
        assert (info.width, info.height) == seen


@pytest.fixture(autouse=True)
def no_bomb_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)


@given(st.sampled_from(SEEDS), st.data())
def test_truncated(seed: bytes, data: st.DataObject) -> None:
    check_damaged(seed[: data.draw(st.integers(0, len(seed)))])


@given(st.sampled_from(SEEDS), st.data())
def test_flipped_bits(seed: bytes, data: st.DataObject) -> None:
    damaged = bytearray(seed)
    reach = data.draw(st.sampled_from([40, 700, len(seed)]))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, min(reach, len(seed)) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    check_damaged(bytes(damaged))


@given(st.sampled_from([seed[:12] for seed in SEEDS] + [b""]), st.binary(max_size=200))
def test_rubbish(head: bytes, rubbish: bytes) -> None:
    check_damaged(head + rubbish)
