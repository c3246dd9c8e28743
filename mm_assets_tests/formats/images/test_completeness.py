"""What a look at the structure of an image says of its end."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm_assets.formats.images import looks_whole
from mm_assets_tests.formats.images.tiff_tools import grey_page, write_tiff
from mm_assets_tests.formats.images.variants import (
    WHOLE,
    encoded,
    gif_with_frame,
    kind_of,
    png_of,
    strips_tiff,
    tiled_tiff,
)

names = pytest.mark.parametrize("name", WHOLE)


@names
def test_whole_images(name: str) -> None:
    data = WHOLE[name]
    for source in (data, bytearray(data), memoryview(data), memoryview(data).cast("b")):
        assert looks_whole(source, kind_of(name)) is True


@names
def test_no_cut_looks_whole(name: str) -> None:
    data = WHOLE[name]
    needed = len(data) - (15 if name == "tiff jpeg frames" else 0)  # Pillow fills frames up to 16 bytes
    assert [end for end in range(needed) if looks_whole(memoryview(data)[:end], kind_of(name))] == []


@names
@pytest.mark.parametrize(
    "stray", [b"\0", b"\n", b"garbage" * 9, bytes(1 << 16)], ids=["nul", "newline", "garbage", "padding"]
)
def test_stray_bytes_behind_the_end(name: str, stray: bytes) -> None:
    kind = kind_of(name)
    in_place = kind in ("bmp", "tiff") or (stray == b"\0" and len(WHOLE[name]) % 2 == 1 and kind == "webp")
    assert (
        looks_whole(WHOLE[name] + stray, kind) is in_place
    )  # these two point at their pixels, they have no end


def test_an_end_without_pixels() -> None:
    gif = encoded("gif", "P")
    assert not looks_whole(gif[:6] + struct.pack("<HHBBB", 5, 5, 0, 0, 0) + b";", "gif")
    assert not looks_whole(png_of(5, 5), "png")
    assert not looks_whole(b"RIFF" + struct.pack("<I", 22) + b"WEBPVP8X\x0a\0\0\0" + bytes(10), "webp")
    assert not looks_whole(write_tiff([grey_page(5, 5, b"")]), "tiff")


@pytest.mark.parametrize(
    ("frame", "fits"), [((61, 43), True), ((62, 43), False), ((61, 44), False), ((9, 9), True)]
)
def test_gif_frames_fit_the_screen(frame: tuple[int, int], fits: bool) -> None:
    assert looks_whole(gif_with_frame((61, 43), frame), "gif") is fits


def test_webp_without_the_padding_of_its_last_chunk() -> None:
    data = next(d for d in (encoded("webp", size=(n, 9), lossless=True) for n in range(9, 90)) if d[16] % 2)
    assert looks_whole(data, "webp")
    assert looks_whole(data[:4] + struct.pack("<I", len(data) - 9) + data[8:], "webp")
    assert looks_whole(data[:4] + struct.pack("<I", len(data) - 9) + data[8:-1], "webp")
    assert not looks_whole(data[:-1], "webp")


def test_webp_with_a_chunk_beyond_its_end() -> None:
    data = bytearray(WHOLE["webp"])
    data[16:20] = struct.pack("<I", len(data))
    assert not looks_whole(data, "webp")


@pytest.mark.parametrize(
    ("at", "value"),
    [(10, 0), (10, 30), (10, 1 << 31), (18, 1000), (22, 1000), (28, 0xFFFF), (30, 1)],
    ids=lambda v: str(v),
)
def test_bmp_whose_pixels_do_not_fit(at: int, value: int) -> None:
    data = bytearray(WHOLE["bmp"])
    data[at : at + 4] = struct.pack("<I", value)
    if at == 30:
        data[34:38] = bytes(4)  # runs of an unknown length
    assert not looks_whole(data, "bmp")


def test_bmp_of_the_oldest_kind_and_from_the_top_down() -> None:
    pixels = bytes(8 * 4)
    core = b"BM" + bytes(8) + struct.pack("<IIHHHH", 26, 12, 2, 4, 1, 24)
    assert looks_whole(core + pixels, "bmp")
    assert not looks_whole(core + pixels[1:], "bmp")
    data = bytearray(WHOLE["bmp"])
    data[22:26] = struct.pack("<i", -43)
    assert looks_whole(data, "bmp")
    assert not looks_whole(data[:-1], "bmp")


def entry_at(data: bytes, tag: int, directory: int) -> int:
    """Position of an entry in the directory that many links along (little-endian, classic)."""
    at = struct.unpack_from("<I", data, 4)[0]
    for _ in range(directory):
        at = struct.unpack_from("<I", data, at + 2 + 12 * struct.unpack_from("<H", data, at)[0])[0]
    number = struct.unpack_from("<H", data, at)[0]
    return next(
        row
        for row in range(at + 2, at + 2 + 12 * number, 12)
        if struct.unpack_from("<H", data, row)[0] == tag
    )


@pytest.mark.parametrize("directory", [0, 2])
@pytest.mark.parametrize(
    ("tag", "at", "value"),
    [
        (279, 4, 4),  # one length fewer than offsets
        (279, 4, 0),
        (273, 4, 1 << 31),  # more values than bytes
        (273, 8, 1 << 31),  # a list beyond the end
        (273, 2, 2),  # no numbers
        (273, 0, 999),  # no strips at all
        (279, 0, 999),
    ],
)
def test_tiff_lists_that_make_no_sense(tag: int, at: int, value: int, directory: int) -> None:
    data = bytearray(strips_tiff())
    row = entry_at(data, tag, directory)
    struct.pack_into("<I" if at >= 4 else "<H", data, row + at, value)
    assert not looks_whole(data, "tiff")


@pytest.mark.parametrize("directory", [0, 1, 2])
@pytest.mark.parametrize(("tag", "value"), [(273, 1 << 30), (279, 1 << 30), (279, 0)])
def test_tiff_strips_outside_the_file_or_without_bytes(tag: int, value: int, directory: int) -> None:
    data = bytearray(strips_tiff())
    values = struct.unpack_from("<I", data, entry_at(data, tag, directory) + 8)[0]
    struct.pack_into("<I", data, values + 8, value)
    assert not looks_whole(data, "tiff")


def test_tiff_tiles_outside_the_file() -> None:
    data = bytearray(tiled_tiff())
    values = struct.unpack_from("<I", data, entry_at(data, 324, 0) + 8)[0]
    struct.pack_into("<I", data, values + 4, len(data))
    assert not looks_whole(data, "tiff")


def test_tiff_directories_that_share_one_long_list() -> None:
    """Each frame alone is sound; together their lists are larger than the file, so reading all would cost any
    amount of time.
    """
    pages = [grey_page(1, 1, b"x") for _ in range(30)]
    data = bytearray(write_tiff(pages)) + struct.pack("<I", 8) * 1000
    for directory in range(30):
        for tag in (273, 279):
            struct.pack_into("<II", data, entry_at(data, tag, directory) + 4, 1000, len(data) - 4000)
    assert not looks_whole(data, "tiff")


@given(st.sampled_from(sorted(WHOLE)), st.data())
def test_damaged_bytes_never_raise(name: str, data: st.DataObject) -> None:
    damaged = bytearray(WHOLE[name][: data.draw(st.integers(0, len(WHOLE[name])))])
    for _ in range(data.draw(st.integers(1, 4))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    assert looks_whole(damaged, kind_of(name)) in (True, False)
