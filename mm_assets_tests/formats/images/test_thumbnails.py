"""Strips of thumbnails: small, of the first images that can be decoded, and never of a bomb."""

import io
import random

import pyarrow as pa
import pytest
from PIL import Image

from mm_assets.formats.images import pixels as thumbnails
from mm_assets.formats.images.pixels import MAX_STRIP_BYTES, ThumbnailStrip, thumbnail
from mm_assets.model.samples import InterleavedBatch, StepResult
from mm_assets.model.schema import INTERLEAVED_SCHEMA
from mm_assets_tests.formats.images.pictures import KINDS, picture


def saved(image: Image.Image, kind: str = "PNG") -> bytes:
    output = io.BytesIO()
    image.save(output, kind)
    return output.getvalue()


def plain(colour: str, size: tuple[int, int] = (96, 48)) -> bytes:
    return saved(Image.new("RGB", size, colour))


def noise(number: int, size: tuple[int, int] = (400, 300)) -> bytes:
    pixels = random.Random(number).randbytes(size[0] * size[1] * 3)
    return saved(Image.frombytes("RGB", size, pixels))


def batch(*images: bytes | None) -> InterleavedBatch:
    rows = [
        {"sample_id": "s", "position": n, "modality": "image", "binary_content": data}
        for n, data in enumerate(images)
    ]
    return InterleavedBatch(pa.Table.from_pylist(rows, schema=INTERLEAVED_SCHEMA))


def shown(strip: ThumbnailStrip) -> Image.Image:
    return Image.open(io.BytesIO(strip.webp())).convert("RGB")


def test_first_images_stand_side_by_side() -> None:
    strip = ThumbnailStrip(limit=2)
    for images in ((plain("red"), None), (plain("blue", (200, 200)), plain("green"))):
        one = batch(*images)
        assert strip(one).batch is one
    found = shown(strip)
    assert found.size == (96 + 4 + 48, 48)
    (red, _, _), (_, _, blue) = found.getpixel((40, 24)), found.getpixel((130, 24))  # type: ignore[misc]
    assert red > 200 and blue > 200


def test_without_images_there_is_no_strip() -> None:
    strip = ThumbnailStrip()
    strip(batch(None, b"no image", b"\xff\xd8\xff"))
    assert strip.webp() == b""


def test_richest_images_fit_too() -> None:
    strip = ThumbnailStrip()
    strip(batch(*(noise(n) for n in range(3))))
    assert 0 < len(strip.webp()) <= MAX_STRIP_BYTES
    assert shown(strip).height == 48


@pytest.mark.parametrize("number", range(len(KINDS)), ids=lambda n: f"{n}-{KINDS[n][0]}")
def test_every_kind_has_a_thumbnail(number: int) -> None:
    made = thumbnail(memoryview(picture(number)[1]))
    assert made is not None and made.mode == "RGB"
    assert made.width <= 96 and made.height <= 48


def test_images_that_are_too_large_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thumbnails, "_LARGEST", 100)
    assert thumbnail(memoryview(plain("red", (10, 10)))) is not None
    assert thumbnail(memoryview(plain("red", (10, 11)))) is None


def test_tile_larger_than_its_image_is_not_decoded() -> None:
    tiled = bytearray(saved(Image.new("RGB", (16, 16)), "TIFF"))
    # RowsPerStrip (278) becomes TileWidth (322), PlanarConfiguration (284) becomes TileLength (323).
    for tag, becomes, value in ((278, 322, 1 << 30), (284, 323, 60_000)):
        at = tiled.index(tag.to_bytes(2, "little"))
        tiled[at : at + 2] = becomes.to_bytes(2, "little")
        tiled[at + 8 : at + 12] = value.to_bytes(4, "little")
    assert thumbnail(memoryview(bytes(tiled))) is None


def test_images_that_a_step_removes_are_kept() -> None:
    both = batch(plain("red"), plain("blue"))

    def drop_first(given: InterleavedBatch) -> StepResult:
        return StepResult(InterleavedBatch(given.data.slice(1)), removed=given.data.slice(0, 1))

    dropped = ThumbnailStrip()
    outcome = dropped.of_removed(drop_first)(both)
    assert outcome.batch.data.num_rows == 1
    red, _, blue = shown(dropped).getpixel((40, 24))  # type: ignore[misc]
    assert red > 200 > 100 > blue
