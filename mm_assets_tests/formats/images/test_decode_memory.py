"""What it takes to decode an image, and that it is not tried beyond a limit."""

from __future__ import annotations

from typing import Any

import pytest

from mm_assets.formats.images.decode import opened
from mm_assets.formats.images.pixels import TooMuchMemory, decoding_memory, rgb_pixels
from mm_assets_tests.formats.images.variants import encoded, kind_of

PIXELS = 61 * 43
LIMIT = 1_000_000


@pytest.mark.parametrize(
    ("kind", "mode", "options", "each"),
    [
        ("jpg", "RGB", {}, 7),
        ("jpg", "L", {}, 4),
        ("jpg", "RGB", {"progressive": True, "subsampling": 0}, 10),
        ("jpg", "RGB", {"progressive": True, "subsampling": 2}, 7),
        ("png", "RGB", {}, 7),
        ("png", "P", {}, 4),
        ("tiff", "RGB", {"compression": "tiff_lzw"}, 7),
        ("gif", "P", {}, 7),
    ],
)
def test_the_file_and_so_many_bytes_of_each_pixel(
    kind: str, mode: str, options: dict[str, Any], each: int
) -> None:
    data = encoded(kind, mode, **options)
    with opened(data, kind, LIMIT) as image:
        assert decoding_memory(image, kind, data, is_raw=False) == len(data) + each * PIXELS


def test_webp_has_two_copies_of_the_file() -> None:
    data = encoded("webp")
    with opened(data, "webp", LIMIT) as image:
        assert decoding_memory(image, "webp", data, is_raw=False) == 2 * len(data) + 16 * PIXELS


def test_pixels_that_lie_in_the_file_take_no_picture_of_pillow() -> None:
    data = encoded("tiff")
    needed = len(data) + 4 * PIXELS
    assert rgb_pixels(data, kind_of("tiff"), LIMIT, needed).shape == (43, 61, 3)
    with pytest.raises(TooMuchMemory, match=f"61x43 pixels: {needed} bytes to decode, at most {needed - 1}"):
        rgb_pixels(data, "tiff", LIMIT, needed - 1)
