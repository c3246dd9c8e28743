"""Uncompressed pictures are taken from the file, and are the same as Pillow's."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mm_assets.formats.images import pixels
from mm_assets.formats.images.decode import opened
from mm_assets.formats.images.pixels import raw_tiles, rgb_pixels
from mm_assets.model.errors import ImageError
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


def uncompressed(order: str, bits: int, tile: int = 0) -> bytes:
    """A TIFF of 40 x 24 RGB pixels of noise, in one strip or in tiles of a side."""
    width, height = 40, 24
    each = 3 * bits // 8
    random = np.random.default_rng(bits)
    sizes = (
        [tile * tile * each] * (-(-width // tile) * -(-height // tile)) if tile else [width * height * each]
    )
    blocks = [random.bytes(size) for size in sizes]
    tags: dict[int, list[int]] = {256: [width], 257: [height], 258: [bits] * 3, 259: [1], 262: [2], 277: [3]}
    tags |= {322: [tile], 323: [tile]} if tile else {278: [height]}
    count = len(blocks)
    values = 8 + 2 + 12 * (len(tags) + 2) + 4  # where those begin that do not fit into their entries
    data = values + 6 + 8 * count
    offsets = [data + sum(sizes[:block]) for block in range(count)]
    entries = {**tags, (324 if tile else 273): offsets, (325 if tile else 279): sizes}
    place = {258: values, (324 if tile else 273): values + 6, (325 if tile else 279): values + 6 + 4 * count}
    file = struct.pack(f"{order}2sHIH", b"II" if order == "<" else b"MM", 42, 8, len(entries))
    for tag, found in sorted(entries.items()):
        is_long = tag in place and tag != 258
        file += struct.pack(f"{order}HHI", tag, 4 if is_long else 3, len(found))
        if tag == 258 or (is_long and count > 1):
            file += struct.pack(f"{order}I", place[tag])
        else:
            file += struct.pack(f"{order}I" if is_long else f"{order}HH", *found, *([] if is_long else [0]))
    file += bytes(4) + struct.pack(f"{order}3H{2 * count}I", *entries[258], *offsets, *sizes)
    return file + b"".join(blocks)


@pytest.mark.parametrize("strip", [1, 100, 1 << 20])
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize(("bits", "tile"), [(8, 0), (16, 0), (8, 16), (16, 16), (8, 48)])
def test_of_many_bits_in_any_order_of_bytes_and_in_tiles(
    order: str, bits: int, tile: int, strip: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pixels, "_STRIP", strip)
    data = uncompressed(order, bits, tile)
    with Image.open(io.BytesIO(data)) as image:
        assert image.size == (40, 24)
        expected = np.asarray(image.convert("RGB"))
    assert np.array_equal(rgb_pixels(data, "tiff", LIMIT), expected)


@pytest.mark.parametrize("order", "<>")
def test_many_bits_are_taken_from_the_file(order: str) -> None:
    assert is_raw(uncompressed(order, 16), "tiff")


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


def test_rows_that_would_overlap_are_left_to_pillow() -> None:
    data = encoded("tiff")
    with opened(data, "tiff", LIMIT) as image:
        (tile,) = image.tile
        assert raw_tiles(image, data) is not None
        image.tile = [tile._replace(args=("RGB", image.width * 3 - 1, 1))]
        assert raw_tiles(image, data) is None


def test_strips_of_another_picture_are_left_to_pillow() -> None:
    data = encoded("tiff")
    with opened(data, "tiff", LIMIT) as image:
        (tile,) = image.tile
        left, upper, right, lower = tile.extents or (0, 0, 0, 0)
        image.tile = [tile._replace(extents=(left, upper, right, lower - 1))]
        assert raw_tiles(image, data) is None


def test_strips_that_would_cover_a_place_twice_are_left_to_pillow() -> None:
    picture = noise((8, 4), seed=0)
    data = bytearray(encoded("tiff", size=(8, 4), tiffinfo={278: 2}))
    with opened(bytes(data), "tiff", LIMIT) as image:
        assert len(image.tile) == 2
        image.tile.append(image.tile[0])
        assert raw_tiles(image, bytes(data)) is None
    assert np.array_equal(rgb_pixels(data, "tiff", LIMIT), np.asarray(picture))
