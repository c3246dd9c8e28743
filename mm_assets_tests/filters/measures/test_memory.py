"""Scores of the largest images that are decoded take less memory than a worker has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mm_assets.filters.measure import MOST_DECODED_PIXELS
from mm_assets.formats.registry import reader_for, writer_for
from mm_assets_tests.forks import Forks, forks
from mm_assets_tests.formats.raw_tars import make_tar

LIMIT = 256  # MiB above the imports and a first image
_CODE = """
import cv2
from mm_assets.filters.scores import score_table
from mm_assets.filters.clip import ClipMeasure
from mm_assets.filters.measures import IMAGE_MEASURES
from mm_assets import InterleavedParquetReader
from mm_assets.formats.partitions import Partition
columns = ['sample_id', 'position', 'modality', 'materialize_error', 'binary_content']
measures = [measure for measure in IMAGE_MEASURES if not isinstance(measure, ClipMeasure)]
def memory(of):
    return int(next(l for l in open('/proc/self/status') if l.startswith(of)).split()[1]) >> 10
def scores(uri):
    _, tables = InterleavedParquetReader(()).project(Partition('x', (uri,)), columns)
    return [row for table in tables for row in score_table(table, measures).to_pylist()]
def of(tiny, large):
    scores(tiny)
    base = memory('VmRSS')
    return [scores(large)[0]['sharpness'], memory('VmHWM') - base]
"""


@pytest.fixture(scope="module")
def apart() -> Iterator[Forks]:
    """Processes of their own: the sharpness of an image, and the peak of one that scores it after a tiny
    image, in MiB.
    """
    with forks(_CODE) as started:
        yield started


def picture(pixels: int, mode: str) -> Image.Image:
    """Patches of colour with noise in every sixteenth row, which makes files of some size."""
    width = int(pixels**0.5) // 8 * 8
    patches = np.random.default_rng(3).integers(0, 256, (8, 8, 3)).astype(np.uint8)
    made = np.kron(patches, np.ones((width // 8, width // 8, 1), np.uint8))
    made[::16] = np.random.default_rng(4).integers(0, 256, made[::16].shape, np.uint8)
    return Image.fromarray(made).convert(mode)


def parquet(folder: Path, kind: str, pixels: int, mode: str, **options: Any) -> Path:
    """A curated shard of one image."""
    folder.mkdir()
    with open(folder / "image", "w+b") as file:
        picture(pixels, mode).save(file, kind, **options)
        file.seek(0)
        name = f"a.{kind.lower()}"
        json_member = ("a.json", {"texts": [None], "images": [name]})
        tar = make_tar(folder / "a.tar", [json_member, (name, file.read())])
    writer_for("parquet", folder).write(reader_for("webdataset", tar))
    return folder / "a.parquet"


def scored(
    apart: Forks, folder: Path, kind: str, pixels: int, mode: str, **options: Any
) -> tuple[float | None, int]:
    shards = [parquet(folder / f"{size}", kind, size, mode, **options) for size in (10_000, pixels)]
    sharpness, peak = apart.call(*map(str, shards))
    return sharpness, peak


@pytest.mark.parametrize(
    ("kind", "pixels", "mode", "options"),
    [
        ("TIFF", MOST_DECODED_PIXELS, "RGB", {}),
        ("TIFF", 31_000_000, "RGBA", {}),
        ("BMP", MOST_DECODED_PIXELS, "RGB", {}),
        ("JPEG", MOST_DECODED_PIXELS, "RGB", {"quality": 80}),
        ("JPEG", 23_000_000, "RGB", {"quality": 80, "progressive": True, "subsampling": 0}),
        ("PNG", 28_000_000, "RGB", {"compress_level": 1}),
        ("WEBP", 15_000_000, "RGB", {"quality": 50, "method": 0}),
    ],
    ids=["tiff", "tiff with alpha", "bmp", "jpeg", "progressive jpeg", "png", "webp"],
)
def test_the_largest_images_that_are_decoded(
    apart: Forks, kind: str, pixels: int, mode: str, options: dict[str, Any], tmp_path: Path
) -> None:
    sharpness, peak = scored(apart, tmp_path, kind, pixels, mode, **options)
    assert (sharpness is not None, peak < LIMIT) == (True, True), (sharpness, peak)


@pytest.mark.parametrize(
    ("kind", "pixels", "mode", "options"),
    [
        ("PNG", MOST_DECODED_PIXELS, "RGB", {"compress_level": 0}),
        ("JPEG", 30_000_000, "RGB", {"quality": 80, "progressive": True, "subsampling": 0}),
        ("WEBP", 18_000_000, "RGB", {"quality": 50, "method": 0}),
    ],
    ids=["png of 100 MB", "progressive jpeg", "webp"],
)
def test_larger_ones_have_no_scores_of_pixels(
    apart: Forks, kind: str, pixels: int, mode: str, options: dict[str, Any], tmp_path: Path
) -> None:
    sharpness, peak = scored(apart, tmp_path, kind, pixels, mode, **options)
    assert (sharpness, peak < LIMIT) == (None, True), peak
