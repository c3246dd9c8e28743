"""What decodes, what does not, and what is never decoded because it would cost too much."""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from dataclasses import replace
from typing import Any

import pytest
from PIL import Image, ImageFile, TiffImagePlugin

from mm_assets.formats.images import looks_whole, probe
from mm_assets.formats.images.decode import decode, opened, refuse_bomb
from mm_assets.model.errors import DecompressionBomb, ImageError
from mm_assets_tests.formats.hostile.pictures import photograph
from mm_assets_tests.formats.images.tiff_tools import grey_page, write_tiff
from mm_assets_tests.formats.images.variants import (
    WHOLE,
    encoded,
    gif_with_frame,
    interlaced_png,
    jpeg_with_size,
    kind_of,
    png_of,
    tiled_tiff,
)

LIMIT = 1_000_000
names = pytest.mark.parametrize("name", WHOLE)


@names
def test_whole_images_decode(name: str) -> None:
    data = WHOLE[name]
    for source in (data, bytearray(data), memoryview(data).cast("b")):
        assert decode(source, kind_of(name), LIMIT) is True


@names
@pytest.mark.parametrize("part", [0.5, 0.75, 0.9])
def test_cut_bodies_do_not_decode(name: str, part: float) -> None:
    """Wherever the header survives the cut."""
    data = WHOLE[name][: int(len(WHOLE[name]) * part)]
    try:
        kind = probe(data).format
    except ImageError:
        assert kind_of(name) == "tiff"  # whose directory may lie behind the pixels
        return
    if name in ("gif animated", "png animated"):  # the first picture is whole
        assert decode(data, kind, LIMIT) is True
        return
    with pytest.raises(ImageError) as caught:
        decode(data, kind, LIMIT)
    assert type(caught.value) is ImageError
    assert str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(ImageError) as again:
        decode(data, kind, LIMIT)
    assert str(again.value) == str(caught.value)  # it becomes part of the data


@names
@pytest.mark.parametrize(
    "stray", [b"\n", b"garbage" * 9, bytes(1 << 16)], ids=["newline", "garbage", "padding"]
)
def test_stray_bytes_hurt_nobody(name: str, stray: bytes) -> None:
    assert decode(WHOLE[name] + stray, kind_of(name), LIMIT) is True


def test_an_end_marker_left_out() -> None:
    """As far as Pillow gets along without it."""
    lucky = next(d for d in (encoded("jpg", "CMYK", size=(n, 40)) for n in range(40, 90)) if opens(d[:-2]))
    for kind, data in (
        ("jpg", lucky[:-2]),
        *((kind_of(n), WHOLE[n][:-cut]) for n, cut in (("png", 12), ("png interlaced", 12), ("gif", 1))),
    ):
        assert not looks_whole(data, kind)
        assert decode(data, kind, LIMIT) is True
    for name in ("jpg", "jpg progressive"):
        with pytest.raises(ImageError, match="truncated"):
            decode(WHOLE[name][:-2], "jpg", LIMIT)


def opens(data: bytes) -> bool:
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("name", ["jpg", "jpg grey", "jpg cmyk", "jpg progressive"])
def test_zeros_in_the_place_of_a_jpeg_body(name: str) -> None:
    data = WHOLE[name]
    half = len(data) // 2
    with pytest.raises(ImageError, match="truncated"):
        decode(data[:half] + bytes(len(data) - half), "jpg", LIMIT)


@pytest.mark.parametrize("is_sound", [True, False])
def test_zeros_in_the_place_of_a_png_body(is_sound: bool) -> None:
    """They may be a code of the compression, and pixels: only the checksum of the chunk tells."""
    data = photograph("PNG")
    half = len(data) // 2
    damaged = data if is_sound else data[:half] + bytes(len(data) - half)
    assert looks_whole(damaged, "png") is is_sound
    assert opens(damaged)
    if is_sound:
        assert decode(damaged, "png", LIMIT) is True
    else:
        with pytest.raises(ImageError, match="checksum"):
            decode(damaged, "png", LIMIT)


@pytest.mark.parametrize("name", ["jpg", "jpg grey", "jpg cmyk"])
def test_zeros_in_the_place_of_the_end_marker(name: str) -> None:
    """Pillow reads these, and nothing of the picture is missing."""
    for padding in (16, 512):
        assert decode(WHOLE[name][:-2] + bytes(padding), "jpg", LIMIT) is True


@pytest.mark.parametrize("name", ["png", "png interlaced", "png bits"])
def test_damage_inside_a_whole_png_is_found(name: str) -> None:
    data = bytearray(WHOLE[name])
    at = data.index(b"IDAT") + 4 + 90
    data[at : at + 20] = bytes(20)
    assert looks_whole(data, "png")
    with pytest.raises(ImageError):
        decode(data, "png", LIMIT)


def test_the_interlaced_png_is_one() -> None:
    with Image.open(io.BytesIO(interlaced_png(9, 5))) as image:
        assert image.info["interlace"] == 1
        image.load()
        assert image.size == (9, 5)


def test_every_frame_of_a_tiff_is_decoded() -> None:
    pages = [grey_page(9, 9, bytes(81)), grey_page(9, 9, zlib.compress(bytes(81)))]
    pages[1].tags[259] = (3, 8)
    assert decode(write_tiff(pages), "tiff", LIMIT) is True
    pages[1].payload[273] = [b"no zlib stream"]
    assert decode(write_tiff(pages[:1]), "tiff", LIMIT) is True
    with pytest.raises(ImageError):
        decode(write_tiff(pages), "tiff", LIMIT)


def test_frames_beyond_the_bounds_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_tiff([grey_page(10, 10, bytes(100)) for _ in range(9)])
    assert decode(data, "tiff", 113) is True  # 9 * 100 pixels, at most 8 * 113
    assert decode(data, "tiff", 112) is False
    monkeypatch.setattr("mm_assets.formats.images.decode._MAX_FRAMES", 8)
    assert decode(data, "tiff", LIMIT) is False


BOMBS = {
    "png": (png_of(30_000, 20_000, b""), "30000x20000 pixels, at most 1000000"),
    "jpg": (jpeg_with_size(60_000, 50_000), "60000x50000 pixels"),
    "jpg scans": (
        jpeg_with_size(1000, 999, progressive=True) + b"\xff\xda" * 64,
        "1000x999 pixels in 7[0-9] scans",
    ),
    "webp": (WHOLE["webp"][:26] + struct.pack("<HH", 1500, 1000) + WHOLE["webp"][30:], "1500x1000 pixels"),
    "webp huge": (
        WHOLE["webp"][:26] + struct.pack("<HH", 16_000, 16_000) + WHOLE["webp"][30:],
        # By Pillow's own bound, or ours: versions read the header differently.
        "exceeds limit|16000x16000 pixels",
    ),
    "gif": (gif_with_frame((30_000, 20_000), (5, 5)), "30000x20000 pixels"),
    "gif frame": (gif_with_frame((5, 5), (2000, 3000)), "2000x3000 pixels"),
    "gif huge frame": (gif_with_frame((5, 5), (60_000, 60_000)), "exceeds limit"),
    "bmp": (WHOLE["bmp"][:18] + struct.pack("<ii", 30_000, 20_000) + WHOLE["bmp"][26:], "30000x20000 pixels"),
    "tiff": (write_tiff([grey_page(30_000, 20_000, b"x")]), "30000x20000 pixels"),
    "tiff frame": (write_tiff([grey_page(9, 9, bytes(81)), grey_page(3000, 2000, b"x")]), "3000x2000 pixels"),
    "tiff huge frame": (
        write_tiff([grey_page(9, 9, bytes(81)), grey_page(30_000, 20_000, b"x")]),
        "30000x20000 pixels",
    ),
    "tiff tile": (tiled_tiff(9, 9, (16_000, 16_000), [zlib.compress(bytes(99))]), "16000x16000 pixels"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_not_decoded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[tuple[int, int]] = []
    load = ImageFile.ImageFile.load
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda image: loaded.append(image.size) or load(image))
    monkeypatch.setattr(TiffImagePlugin.TiffImageFile, "_load_libtiff", lambda *_: pytest.fail("decoded"))
    data, message = BOMBS[name]
    with warnings.catch_warnings(), pytest.raises(DecompressionBomb, match=message):
        warnings.simplefilter("error")
        decode(data, kind_of(name), LIMIT)
    assert set(loaded) <= {(9, 9)}  # the small frame in front


@pytest.mark.parametrize("tag", [322, 323])
def test_sides_of_a_tile_that_are_no_numbers_are_not_multiplied(tag: int) -> None:
    """A text times the other side would be as long as the file's author likes."""
    sides: dict[int, tuple[Any, ...]] = {322: (4, 4_000_000_000), 323: (4, 4_000_000_000)}
    sides[tag] = (2, b"AAAAAAAA\0")
    page = grey_page(9, 9, bytes(81))
    data = write_tiff([replace(page, tags={**page.tags, **sides})])
    with pytest.raises(ImageError, match="not numbers"):
        opened(data, "tiff", LIMIT)


def test_what_is_no_bomb() -> None:
    refuse_bomb(1000, 1000, LIMIT, 64)
    for refused in ((1001, 1000, LIMIT), (1000, 1000, LIMIT, 65)):
        with pytest.raises(DecompressionBomb):
            refuse_bomb(*refused)


def test_pillow_warnings_are_kept_to_ourselves() -> None:
    data = encoded("tiff", compression="tiff_lzw")[:-3]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(ImageError):
            decode(data, "tiff", LIMIT)
    assert caught == []
    with pytest.warns(UserWarning, match="Corrupt"):
        TiffImagePlugin.TiffImageFile(io.BytesIO(encoded("tiff", "1", compression="group4")[:-3]), "")
