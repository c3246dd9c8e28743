"""Frames taken out of a TIFF hold the same tags, the same strips and the same pixels."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageSequence

from mm_assets.formats.images.tiff import FramePlan, plan_sound_frames, split_frame
from mm_assets.formats.images.tiff_directories import as_view, iter_directories, read_header
from mm_assets.model.errors import ImageError, LosslessSplitError
from mm_assets_tests.formats.images.line_budget import line_budget
from mm_assets_tests.formats.images.tiff_tools import (
    BYTE_ORDERS,
    SEEDS,
    Page,
    assert_same,
    grey_page,
    many_tiny_directories,
    noise,
    read_tiff,
    save,
    write_tiff,
)


def frame_count(data: bytes) -> int:
    """The directories of the file's main chain, with thumbnails and masks in it."""
    view = as_view(data)
    return sum(1 for _ in iter_directories(view, *read_header(view)))


def plan_frames(data: bytes) -> list[FramePlan]:
    """A plan for each frame; the first that is damaged raises."""
    plans = []
    for plan in plan_sound_frames(data):
        if isinstance(plan, ImageError):
            raise plan
        plans.append(plan)
    return plans


def decoded(data: bytes) -> list[tuple[str, tuple[int, int], bytes, object]]:
    with Image.open(io.BytesIO(data)) as image:
        return [(f.mode, f.size, f.tobytes(), f.getpalette()) for f in ImageSequence.Iterator(image)]


def split_all(data: bytes) -> list[bytes]:
    """All frames by way of write_into, over memory full of rubbish."""
    frames = []
    for plan in plan_frames(data):
        buffer = bytearray(b"\xa5" * (plan.size + 2))
        plan.write_into(memoryview(buffer)[1:-1])
        assert buffer[0] == buffer[-1] == 0xA5
        frames.append(bytes(buffer[1:-1]))
    return frames


def check_exact(data: bytes, pixels: bool = True) -> list[bytes]:
    source = read_tiff(data)
    frames = split_all(data)
    assert len(frames) == len(source) == frame_count(data)
    for index, (directory, frame) in enumerate(zip(source, frames, strict=True)):
        single = read_tiff(frame, aligned=len(source) > 1)
        assert len(single) == 1
        assert frame[:4] == data[:4]
        assert_same(directory, single[0])
        assert split_frame(data, index) == frame
    if pixels and data[:4] != b"MM\0+":  # Pillow misreads big-endian BigTIFF
        assert [decoded(frame)[0] for frame in frames] == decoded(data)
    return frames


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("RGB", {"compression": "jpeg", "quality": 80}),
        ("L", {"compression": "jpeg"}),
        ("CMYK", {"compression": "jpeg"}),
        ("RGB", {}),
        ("RGB", {"compression": "tiff_lzw"}),
        ("RGB", {"compression": "tiff_adobe_deflate"}),
        ("RGB", {"compression": "packbits"}),
        ("1", {"compression": "group4"}),
        ("1", {"compression": "group3"}),
        ("1", {}),
        ("I;16", {}),
        ("I;16", {"compression": "tiff_lzw"}),
        ("F", {}),
        ("F", {"compression": "tiff_adobe_deflate"}),
        ("P", {}),
        ("P", {"compression": "tiff_lzw"}),
        ("CMYK", {}),
        ("RGBA", {}),
        ("RGBA", {"compression": "tiff_adobe_deflate"}),
        ("LA", {}),
        (
            "RGB",
            {"dpi": (300, 150), "description": "Größe", "software": "x" * 99, "icc_profile": b"icc" * 333},
        ),
    ],
)
def test_frames_written_by_pillow(mode: str, options: dict[str, object], big: bool) -> None:
    frames = [noise(mode, width, height, width) for width, height in ((61, 47), (200, 333), (1, 1))]
    data = save(frames, big_tiff=big, **options)
    assert [(plan.width, plan.height) for plan in plan_frames(data)] == [frame.size for frame in frames]
    check_exact(data)


def test_many_jpeg_strips_are_moved_as_one() -> None:
    data = save([noise("RGB", 700, 640, seed) for seed in (1, 2)], compression="jpeg")
    assert len(read_tiff(data)[0].payload[273]) > 10
    for frame, plan in zip(check_exact(data), plan_frames(data), strict=True):
        assert max(length for _, _, length in plan._copies) == sum(map(len, read_tiff(frame)[0].payload[273]))


def test_orientation_and_exif_survive() -> None:
    exif = Image.Exif()
    exif[274] = 6
    exif[271] = "maker of cameras"
    exif[0x8769] = {37500: b"\x07maker note\x00" * 5, 36867: "2024:01:02 03:04:05"}
    exif[0x8825] = {1: "N", 2: (1.0, 2.0, 3.5)}
    stored = Image.Exif()
    stored.load(exif.tobytes())
    data = save([noise("RGB", 30, 20, 1), noise("RGB", 31, 20, 2)], exif=stored)
    frames = check_exact(data)
    assert 34665 in read_tiff(data)[0].children
    assert plan_frames(data)[0].orientation == 6
    with Image.open(io.BytesIO(frames[0])) as image:
        kept = image.getexif()
        assert kept[274] == 6
        assert kept.get_ifd(0x8769)[37500] == b"\x07maker note\x00" * 5
        assert kept.get_ifd(0x8825)[2] == (1.0, 2.0, 3.5)


@pytest.mark.parametrize(("order", "big"), BYTE_ORDERS)
@pytest.mark.parametrize("gap", [0, 1, 7])
def test_strips_in_every_byte_order(order: str, big: bool, gap: int) -> None:
    pixels = random.Random(5).randbytes(33 * 21)
    pages = [grey_page(33, 21, pixels, rows, gap=gap) for rows in (21, 4, 1)]
    check_exact(write_tiff(pages, order, big))


def test_raw_planes() -> None:
    rng = random.Random(3)
    page = grey_page(10, 7, b"", 3)
    page.tags |= {258: (3, 8, 8, 8), 262: (3, 2), 277: (3, 3), 284: (3, 2)}
    page.payload = {273: [rng.randbytes(10 * rows) for _ in range(3) for rows in (3, 3, 1)]}
    check_exact(write_tiff([page, page]), pixels=False)
    page.payload[273][4] = rng.randbytes(29)
    with pytest.raises(ImageError, match="too short"):
        plan_frames(write_tiff([page, page]))


@pytest.mark.parametrize(("order", "big"), BYTE_ORDERS)
def test_tiles(order: str, big: bool) -> None:
    rng = random.Random(6)
    tags: dict[int, tuple[Any, ...]] = {
        256: (3, 40),
        257: (3, 30),
        258: (3, 8),
        259: (3, 1),
        262: (3, 1),
        277: (3, 1),
        322: (3, 16),
        323: (3, 16),
    }
    pages = [Page(tags, {324: [rng.randbytes(256) for _ in range(6)]}, gap=gap) for gap in (0, 3)]
    check_exact(write_tiff(pages, order, big))


@pytest.mark.parametrize(("order", "big"), BYTE_ORDERS)
def test_pointed_directories_are_copied(order: str, big: bool) -> None:
    interop = Page({1: (2, b"R98\0"), 2: (7, b"0100")})
    exif = Page({36867: (2, b"2024:01:02 03:04:05\0"), 37500: (7, b"note" * 9)}, {}, {40965: [[interop]]})
    gps = Page({1: (2, b"N\0"), 2: (5, (1, 1), (2, 1), (3, 2))})
    small, smaller = (grey_page(n, n, bytes(range(n * n))) for n in (9, 5))
    deep = grey_page(6, 6, bytes(36), children={330: [[grey_page(3, 3, b"abcdefghi")]]})
    first = grey_page(
        20, 20, bytes(400), 7, children={330: [[small, smaller], [deep]], 34665: [[exif]], 34853: [[gps]]}
    )
    data = write_tiff([first, grey_page(4, 4, bytes(16), children={34665: [[exif]]})], order, big)
    check_exact(data)
    source = read_tiff(data)[0]
    assert source.children[34665][0][0].children[40965][0][0].tags[1] == (2, b"R98\0")
    assert [len(chain) for chain in source.children[330]] == [2, 1]


def test_thumbnail_stream_is_copied() -> None:
    out = io.BytesIO()
    noise("L", 8, 8, 1).save(out, "JPEG")
    page = grey_page(4, 4, bytes(16), children={330: [[Page({259: (3, 6)}, {513: [out.getvalue()]})]]})
    data = write_tiff([page, page])
    for frame in check_exact(data):
        assert read_tiff(frame)[0].children[330][0][0].payload[513] == [out.getvalue()]


def test_short_offsets_become_long() -> None:
    page = grey_page(10, 10, bytes(range(100)), 3, offsets_type=3)
    big_value = {700: (7, b"x" * 70_000)}  # lies in front of the payload in the new file
    page.tags |= big_value
    data = write_tiff([page, grey_page(1, 1, b"a")])
    check_exact(data)


def test_shared_strips_do_not_grow() -> None:
    strip = random.Random(1).randbytes(5000)
    page = grey_page(100, 50, strip)  # its strip is the first thing in the file, at offset 8
    shared = grey_page(100, 2000, b"", 50)
    shared.payload = {}
    shared.tags |= {273: (4, *[8] * 40), 279: (4, *[5000] * 40)}
    overlapping = grey_page(100, 50, b"", 25)
    overlapping.payload = {}
    overlapping.tags |= {273: (4, 1508, 8), 279: (4, 3500, 2600)}
    frames = check_exact(write_tiff([page, shared, overlapping]))
    assert all(len(frame) < 5000 + 600 for frame in frames)
    assert read_tiff(frames[1])[0].payload[273] == [strip] * 40
    assert read_tiff(frames[2])[0].payload[273] == [strip[1500:], strip[:2600]]


def test_holes_stay_holes() -> None:
    page = grey_page(4, 4, bytes(16), 2)
    page.tags[259] = (3, 8)
    page.payload = {273: [b"abc", b""]}
    data = write_tiff([page, page])
    for frame in check_exact(data, pixels=False):
        assert read_tiff(frame)[0].payload[273] == [b"abc", b""]


def test_a_single_frame_stays_as_it_is() -> None:
    data = save([noise("RGB", 20, 20, 1)], compression="jpeg") + b"trailing bytes"
    assert split_all(data) == [data]
    assert split_frame(data, 0) == data
    odd = grey_page(2, 2, b"abcd")
    odd.tags[288] = (4, 8)
    data = write_tiff([odd])
    assert split_all(data) == [data]
    assert (plan_frames(data)[0].width, plan_frames(data)[0].height) == (2, 2)


def test_sources_and_destinations_of_any_kind() -> None:
    data = save([noise("RGB", 20, 20, seed) for seed in (1, 2)])
    expected = split_all(data)
    for source in (bytearray(data), memoryview(data), memoryview(data).cast("b")):
        assert [plan.to_bytes() for plan in plan_frames(source)] == expected
    plan = plan_frames(data)[1]
    target = bytearray(plan.size)
    plan.write_into(memoryview(target).cast("b"))
    assert bytes(target) == expected[1]
    with pytest.raises(ValueError, match="destination has"):
        plan.write_into(memoryview(bytearray(plan.size + 1)))


def entry_at(data: bytes, tag: int) -> int:
    at = struct.unpack_from("<I", data, 4)[0]
    number = struct.unpack_from("<H", data, at)[0]
    return next(
        e for e in range(at + 2, at + 2 + 12 * number, 12) if struct.unpack_from("<H", data, e)[0] == tag
    )


def patched(data: bytes, tag: int, fmt: str, shift: int, value: int) -> bytes:
    out = bytearray(data)
    struct.pack_into(fmt, out, entry_at(data, tag) + shift, value)
    return bytes(out)


TWO = write_tiff([grey_page(8, 8, bytes(range(64)), 4), grey_page(3, 3, b"123456789")])
FIRST = struct.unpack_from("<I", TWO, 4)[0]
LINK = FIRST + 2 + 12 * struct.unpack_from("<H", TWO, FIRST)[0]


def linked(value: int) -> bytes:
    return TWO[:LINK] + struct.pack("<I", value) + TWO[LINK + 4 :]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a TIFF"),
        (b"II*\0", "not a TIFF"),
        (b"\xff\xd8\xff\xe0 no tiff at all", "not a TIFF"),
        (b"II+\0\x09\0\0\0" + bytes(8), "not a TIFF"),
        (b"II*\0\0\0\0\0", "without a directory"),
        (b"II*\0\x04\0\0\0" + bytes(50), "outside"),
        (b"II*\0\x08\0\0\0" + bytes(50), "claims 0 entries"),
        (b"II*\0\x08\0\0\0\xff\xff" + bytes(50), "claims 65535 entries"),
        (b"II*\0\x08\0\0\0\x10\0" + bytes(50), "claims 16 entries"),
        (linked(FIRST), "loop"),
        (linked(10**9), "outside"),
        (TWO[: LINK + 2], "cut short"),
    ],
)
def test_damaged_chains(data: bytes, message: str) -> None:
    for call in (frame_count, plan_frames):
        with pytest.raises(ImageError, match=message):
            call(data)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (patched(TWO, 279, "<I", 4, 3), ImageError, "2 payload offsets and 3"),
        (patched(TWO, 279, "<I", 8, 10**6), ImageError, "outside"),
        (patched(TWO, 273, "<H", 2, 2), ImageError, "field type 2"),
        (patched(TWO, 262, "<H", 2, 99), LosslessSplitError, "cannot split losslessly: .*field type 99"),
        (patched(TWO, 279, "<H", 0, 1279), LosslessSplitError, "without tag 279"),
        (patched(TWO, 256, "<I", 8, 0), ImageError, "does not describe"),
        (patched(TWO, 256, "<I", 8, 9), ImageError, "too short"),
        (patched(TWO, 257, "<I", 8, 9), ImageError, "2 strips, .* need 3"),
        (patched(TWO, 257, "<I", 8, 4), ImageError, "2 strips, .* need 1"),
        (patched(TWO, 278, "<I", 8, 5), ImageError, "too short"),
        (patched(TWO, 278, "<I", 8, 0), ImageError, "does not describe"),
        (patched(TWO, 256, "<H", 0, 255), ImageError, "does not describe|no width"),
        (patched(TWO, 258, "<H", 0, 257), ImageError, "twice"),
        (patched(TWO, 262, "<H", 0, 519), LosslessSplitError, "cannot split losslessly: .*519"),
        (patched(TWO, 262, "<H", 0, 34665), LosslessSplitError, "34665 should be an offset"),
    ],
)
def test_a_damaged_frame_spares_the_others(data: bytes, error: type[ImageError], message: str) -> None:
    assert frame_count(data) == 2
    first, second = plan_sound_frames(data)
    assert type(first) is error
    with pytest.raises(error, match=message):
        plan_frames(data)
    with pytest.raises(error, match=message):
        split_frame(data, 0)
    assert not isinstance(second, ImageError)
    assert second.to_bytes() == split_frame(TWO, 1) == split_frame(data, 1)


def test_damage_behind_a_frame_spares_it() -> None:
    first, broken = plan_sound_frames(linked(10**9))
    assert not isinstance(first, ImageError)
    assert first.to_bytes() == split_frame(TWO, 0) == split_frame(linked(10**9), 0)
    assert isinstance(broken, ImageError)
    with pytest.raises(ImageError, match="outside"):
        split_frame(linked(10**9), 1)


@pytest.mark.parametrize("index", [-1, 2, 99])
def test_missing_frames(index: int) -> None:
    with pytest.raises(ImageError, match=f"no frame {index}"):
        split_frame(TWO, index)


def test_cut_strips_are_noticed() -> None:
    data = save([noise("RGB", 50, 50, seed) for seed in (1, 2)])
    with pytest.raises(ImageError, match="cut short|outside"):
        plan_frames(data[:-10])


def test_a_frame_without_an_image() -> None:
    empty = Page({256: (3, 4), 257: (3, 4)}, {}, {330: [[grey_page(2, 2, b"abcd")]]})
    with pytest.raises(ImageError, match="without strips or tiles"):
        plan_frames(write_tiff([empty, empty]))


def test_a_strip_with_an_offset_but_no_length() -> None:
    page = grey_page(4, 4, bytes(16))
    page.tags |= {259: (3, 8), 279: (4, 0)}
    with pytest.raises(LosslessSplitError, match="without a length"):
        plan_frames(write_tiff([page, page]))


def directory_loop() -> bytes:
    """SubIFDs that all point back at their own directory."""
    entries = [(256, 4, 1, 1), (257, 4, 1, 1), (273, 4, 1, 8), (279, 4, 1, 1), (330, 4, 5000, 200)]
    table = (
        struct.pack("<H", 5)
        + b"".join(struct.pack("<HHII", *entry) for entry in entries)
        + struct.pack("<I", 0)
    )
    return (b"II*\0\x10\0\0\0" + bytes(8) + table).ljust(200, b"\0") + struct.pack("<I", 16) * 5000


def shared_table() -> bytes:
    """Thousands of frames that share one table of 100,000 strips."""
    strips, frames = 100_000, 5000
    table = 8 + frames * (2 + 5 * 12 + 4)
    out = bytearray(b"II*\0\x08\0\0\0")
    for number in range(frames):
        entries = [
            (256, 4, 1, 1),
            (257, 4, 1, 1),
            (259, 3, 1, 8),
            (273, 4, strips, table),
            (279, 4, strips, table),
        ]
        following = len(out) + 66 if number + 1 < frames else 0
        out += (
            struct.pack("<H", 5)
            + b"".join(struct.pack("<HHII", *e) for e in entries)
            + struct.pack("<I", following)
        )
    return bytes(out) + struct.pack("<I", 9) * strips


def shared_values() -> bytes:
    """4,000 tags that all show the same megabyte."""
    entries = [(256, 4, 1, 1), (257, 4, 1, 1), (273, 4, 1, 8), (279, 4, 1, 1)]
    entries += [(1000 + n, 7, 1 << 20, 8) for n in range(4000)]
    table = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *e) for e in entries)
    body = b"II*\0" + struct.pack("<I", 8 + (1 << 20)) + bytes(1 << 20) + table
    second = struct.pack("<H", 4) + b"".join(struct.pack("<HHII", *e) for e in entries[:4]) + bytes(4)
    return body + struct.pack("<I", len(body) + 4) + second


@pytest.mark.parametrize("make", [directory_loop, shared_table, shared_values, many_tiny_directories])
def test_hostile_files_stay_cheap(make: Callable[[], bytes]) -> None:
    data = make()
    with line_budget(), pytest.raises(ImageError):
        plan_frames(data)


def check_damaged(data: bytes) -> None:
    """Either an ImageError, or frames equal to what an independent reader finds in the damaged file."""
    try:
        with line_budget():
            plans = plan_sound_frames(data)
    except ImageError:
        return
    if any(isinstance(plan, ImageError) for plan in plans):
        with pytest.raises(ImageError):
            plan_frames(data)
        return
    if [plan.to_bytes() for plan in plans if not isinstance(plan, ImageError)] == [data]:
        assert frame_count(data) == 1  # a single frame is copied, whatever its tags are
        return
    source = read_tiff(data)
    assert len(source) == frame_count(data) == len(plans)
    for directory, plan in zip(source, plans, strict=True):
        assert not isinstance(plan, ImageError)
        assert plan.size <= 3 * len(data) + 4096
        split = read_tiff(plan.to_bytes(), aligned=len(source) > 1)
        assert len(split) == 1
        assert_same(directory, split[0])


@given(st.sampled_from(SEEDS), st.data())
def test_truncated_files(seed: bytes, data: st.DataObject) -> None:
    check_damaged(seed[: data.draw(st.integers(0, len(seed)))])


@given(st.sampled_from(SEEDS), st.data())
def test_flipped_bits(seed: bytes, data: st.DataObject) -> None:
    damaged = bytearray(seed)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(seed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    check_damaged(bytes(damaged))


@given(st.sampled_from(SEEDS), st.binary(max_size=40), st.data())
def test_overwritten_bytes(seed: bytes, rubbish: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(seed)))
    check_damaged(seed[:at] + rubbish + seed[at + len(rubbish) :])
