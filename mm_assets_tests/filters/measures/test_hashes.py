"""Exact and perceptual hashes."""

from __future__ import annotations

import hashlib
import io

import numpy as np
import pdqhash
import pytest
from PIL import Image, ImageOps

from mm_assets.filters.measure import ImageContent
from mm_assets.filters.measures import PerceptualHash, PerceptualQuality, Sha256
from mm_assets_tests.filters.measures.contents import content, content_of, file_of, scene

NEAR = 31  # bits, by the convention of PDQ


def distance(one: ImageContent, other: ImageContent) -> int:
    """Bits in which two hashes differ."""
    return (int(PerceptualHash().measure(one), 16) ^ int(PerceptualHash().measure(other), 16)).bit_count()


def test_sha256_of_the_bytes() -> None:
    data = file_of(scene(30, 40))
    assert Sha256().measure(content(data)) == hashlib.sha256(data).hexdigest()


def test_sha256_decodes_nothing() -> None:
    """The file is cut short: its pixels are not there."""
    data = file_of(scene(30, 40))
    cut = data[: len(data) // 2]
    assert Sha256().measure(content(cut)) == hashlib.sha256(cut).hexdigest()


def test_hash_of_a_small_picture_is_that_of_the_library() -> None:
    picture = np.repeat(scene(300, 400)[..., :1], 3, axis=2)
    bits, quality = pdqhash.compute(picture)
    image = content_of(picture)
    assert PerceptualHash().measure(image) == f"{int(''.join(map(str, bits)), 2):064x}"
    assert PerceptualQuality().measure(image) == quality


@pytest.mark.parametrize("quality", [90, 50, 20])
def test_encoded_anew(quality: int) -> None:
    picture = scene(600, 800)
    assert distance(content_of(picture), content_of(picture, "JPEG", quality=quality)) <= NEAR


def test_scaled() -> None:
    large = Image.fromarray(scene(900, 1200))
    assert distance(content_of(large), content_of(large.resize((400, 300)))) <= NEAR


def test_other_pictures_are_far() -> None:
    images = [content_of(scene(300, 400, seed)) for seed in range(8)]
    pairs = [distance(one, other) for n, one in enumerate(images) for other in images[:n]]
    assert min(pairs) > 80


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_turned_by_its_header_or_for_good(kind: str, orientation: int) -> None:
    stored = Image.fromarray(scene(300, 400))
    exif = Image.Exif()
    exif[274] = orientation
    marked = content_of(stored, kind, exif=exif)
    with Image.open(io.BytesIO(file_of(stored, "PNG", exif=exif))) as opened:
        upright = ImageOps.exif_transpose(opened)
    assert marked.info.orientation == orientation
    assert distance(marked, content_of(upright)) <= 8
    if orientation > 1:
        assert distance(marked, content_of(stored)) > 80


def test_quality_says_that_a_flat_picture_has_no_detail() -> None:
    flat, detailed = content_of(np.full((99, 99, 3), 77, np.uint8)), content_of(scene(99, 99))
    assert len(PerceptualHash().measure(flat)) == 64
    assert PerceptualQuality().measure(flat) == 0
    assert PerceptualQuality().measure(detailed) >= 50


@pytest.mark.parametrize("size", [(1, 1), (1, 900), (900, 1), (4, 4)])
def test_tiny_pictures(size: tuple[int, int]) -> None:
    image = content_of(scene(*size))
    assert (PerceptualHash().measure(image), PerceptualQuality().measure(image)) == ("0" * 64, 0)
