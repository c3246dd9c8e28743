"""Uncompressed pictures are taken from the file, and are the same as Pillow's."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mm_assets.formats.images import pixels
from mm_assets.formats.images.decode import opened
from mm_assets.formats.images.errors import ImageError
from mm_assets.formats.images.pixels import rgb_pixels
from mm_assets.formats.images.raw_tiles import raw_tiles
from mm_assets_tests.formats.images.variants import encoded, noise

LIMIT = 1_000_000


def tiff(mode: str = "RGB", **tags: Any) -> bytes:
    return encoded("tiff", mode, tiffinfo=tags.pop("tiffinfo", {}), **tags)


def is_raw(data: bytes, kind: str) -> bool:
    with opened(data, kind, LIMIT) as image:
        return raw_tiles(image, data) is not None


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (tiff(), "tiff"),
        (tiff("RGBA"), "tiff"),
        (tiff(tiffinfo={278: 5}), "tiff"),
        (tiff(tiffinfo={278: 1}), "tiff"),
        (tiff(tiffinfo={278: 1000}), "tiff"),
        (encoded("bmp"), "bmp"),
        (encoded("bmp", "RGBA"), "bmp"),
        (encoded("bmp", size=(3, 2)), "bmp"),
    ],
    ids=["tiff", "alpha", "strips", "rows", "one strip", "bmp", "bmp with alpha", "padded rows"],
)
@pytest.mark.parametrize("strip", [1, 100, 1 << 20])
def test_they_are_those_of_pillow(
    data: bytes, kind: str, strip: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pixels, "_STRIP", strip)
    assert is_raw(data, kind)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(image.convert("RGB"))
    assert np.array_equal(rgb_pixels(data, kind, LIMIT), expected)
    assert np.array_equal(rgb_pixels(memoryview(data), kind, LIMIT), expected)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_they_lie_as_stored(orientation: int) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    data = encoded("tiff", exif=exif)
    assert is_raw(data, "tiff")
    assert np.array_equal(rgb_pixels(data, "tiff", LIMIT), np.asarray(noise(seed=0)))


@pytest.mark.parametrize(
    ("data", "kind"),
    [(tiff("L"), "tiff"), (encoded("tiff", compression="tiff_lzw"), "tiff"), (encoded("png"), "png")],
    ids=["grey", "packed", "png"],
)
def test_others_are_left_to_pillow(data: bytes, kind: str) -> None:
    assert not is_raw(data, kind)


def test_missing_rows_are_left_to_pillow_which_says_so() -> None:
    data = encoded("bmp")
    assert not is_raw(data[:-1], "bmp")
    with pytest.raises(ImageError, match="truncated"):
        rgb_pixels(data[:-300], "bmp", LIMIT)


def test_strips_that_would_cover_a_place_twice_are_left_to_pillow() -> None:
    picture = noise((8, 4), seed=0)
    data = bytearray(encoded("tiff", size=(8, 4), tiffinfo={278: 2}))
    with opened(bytes(data), "tiff", LIMIT) as image:
        assert len(image.tile) == 2
        image.tile.append(image.tile[0])
        assert raw_tiles(image, bytes(data)) is None
    assert np.array_equal(rgb_pixels(data, "tiff", LIMIT), np.asarray(picture))
