"""Pixels of every kind of image as 8-bit RGB."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mm_assets.formats.images import decode as memory_file
from mm_assets.formats.images import pixels
from mm_assets.formats.images.decode import decode
from mm_assets.formats.images.pixels import rgb_pixels
from mm_assets.model.errors import DecompressionBomb, ImageError
from mm_assets_tests.formats.hostile.pictures import photograph
from mm_assets_tests.formats.images.variants import PILLOW, WHOLE, encoded, kind_of, png_of, tiled_tiff

LIMIT = 1_000_000


def saved(picture: Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, PILLOW[kind], **options)
    return out.getvalue()


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("strip", [1, 100, 1 << 20])
def test_the_pixels_that_pillow_converts(name: str, strip: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixels, "_STRIP", strip)
    with Image.open(io.BytesIO(WHOLE[name])) as image:
        expected = np.asarray(image.convert("RGB"))
    assert np.array_equal(rgb_pixels(WHOLE[name], kind_of(name), LIMIT), expected)


@pytest.mark.parametrize("name", [*WHOLE, "tiff packed"])
def test_a_file_that_is_not_copied(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = WHOLE.get(name) or encoded("tiff", compression="tiff_lzw", frames=2)
    copied = rgb_pixels(data, kind_of(name), LIMIT)
    monkeypatch.setattr(memory_file, "_WORTH_IT", 0)
    assert np.array_equal(rgb_pixels(memoryview(data), kind_of(name), LIMIT), copied)
    assert decode(memoryview(data), kind_of(name), LIMIT)


@pytest.mark.parametrize("kind", ["png", "tiff"])
def test_the_high_byte_of_sixteen_bits(kind: str) -> None:
    deep = np.array([[0, 255, 256, 0x1234, 0xFFFF]], np.uint16)
    made = rgb_pixels(saved(Image.fromarray(deep), kind), kind, LIMIT)
    assert made.tolist() == [[[grey] * 3 for grey in (0, 0, 1, 0x12, 255)]]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[-100, 0, 155]], np.int32), [0, 100, 255]),
        (np.array([[0.0, 0.5, 1.0]], np.float32), [0, 128, 255]),
        (np.array([[np.nan, 2.0, np.inf, 4.0]], np.float32), [0, 0, 255, 255]),
        (np.array([[7.5, 7.5]], np.float32), [0, 0]),
        (np.array([[np.nan, np.inf]], np.float32), [0, 0]),
    ],
    ids=["integers", "fractions", "no numbers", "flat", "nothing finite"],
)
def test_numbers_without_a_range_are_stretched(values: Any, expected: list[int]) -> None:
    made = rgb_pixels(saved(Image.fromarray(values), "tiff"), "tiff", LIMIT)
    assert made[0, :, 0].tolist() == expected


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_transparency_is_left_out(mode: str) -> None:
    picture = Image.new(mode, (2, 1), (90, 0) if mode == "LA" else (90, 90, 90, 0))
    assert rgb_pixels(saved(picture, "png"), "png", LIMIT).tolist() == [[[90] * 3] * 2]


def test_a_transparent_colour_of_a_palette() -> None:
    picture = Image.new("P", (2, 1), 1)
    picture.putpalette([0, 0, 0, 10, 20, 30])
    data = saved(picture, "png", transparency=1)
    assert rgb_pixels(data, "png", LIMIT).tolist() == [[[10, 20, 30]] * 2]


def test_one_bit() -> None:
    picture = Image.new("1", (2, 1))
    picture.putpixel((1, 0), 1)
    assert rgb_pixels(saved(picture, "png"), "png", LIMIT).tolist() == [[[0] * 3, [255] * 3]]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["jpg", "png", "tiff"])
def test_orientation_is_not_applied(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    plain = rgb_pixels(encoded(kind), kind, LIMIT)
    assert np.array_equal(rgb_pixels(encoded(kind, exif=exif), kind, LIMIT), plain)


@pytest.mark.parametrize("kind", ["gif", "webp", "tiff"])
def test_the_first_frame(kind: str) -> None:
    options = {"lossless": True} if kind == "webp" else {}
    one, many = (rgb_pixels(encoded(kind, frames=frames, **options), kind, LIMIT) for frames in (1, 3))
    assert np.array_equal(many, one)


@pytest.mark.parametrize("kind", ["jpg", "png", "webp", "gif", "bmp"])
def test_cut_images_are_errors(kind: str) -> None:
    data = encoded(kind)
    with pytest.raises(ImageError) as caught:
        rgb_pixels(data[: len(data) // 2], kind, LIMIT)
    assert "\n" not in str(caught.value)


def test_the_checksum_of_a_png() -> None:
    data = photograph("PNG")
    half = len(data) // 2
    with pytest.raises(ImageError, match="checksum"):
        rgb_pixels(data[:half] + bytes(len(data) - half), "png", LIMIT)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda: png_of(4000, 3000), "png"),
        (lambda: encoded("jpg", size=(1100, 1000)), "jpg"),
        (lambda: tiled_tiff(tile=(8000, 8000), tiles=[zlib.compress(bytes(8000 * 8000))]), "tiff"),
    ],
    ids=["png", "jpg", "tile"],
)
def test_bombs(make: Callable[[], bytes], kind: str) -> None:
    with pytest.raises(DecompressionBomb):
        rgb_pixels(make(), kind, LIMIT)
