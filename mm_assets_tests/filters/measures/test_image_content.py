"""What every measure has in common: one decoded picture, values that stand by themselves, errors."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pyarrow as pa
import pytest

from mm_assets.filters import measure as image_content
from mm_assets.filters.clip import ClipMeasure
from mm_assets.filters.measure import ImageMeasure
from mm_assets.filters.measures import IMAGE_MEASURES as ALL
from mm_assets.filters.measures import Sha256
from mm_assets.model.errors import DecompressionBomb, ImageError, explained
from mm_assets_tests.filters.measures.contents import content, file_of, scene
from mm_assets_tests.formats.images.variants import png_of

MEASURES = [measure for measure in ALL if not isinstance(measure, ClipMeasure)]  # those need a model
OF_PIXELS = [measure for measure in ALL if measure.decodes]
of_pixels = pytest.mark.parametrize("measure", OF_PIXELS, ids=lambda measure: measure.name)


@of_pixels
def test_a_cut_image_is_an_error(measure: ImageMeasure) -> None:
    data = file_of(scene(60, 80), "JPEG")
    with pytest.raises(ImageError, match="truncated"):
        measure.measure(content(data[: len(data) // 2]))


@of_pixels
def test_a_bomb_is_not_decoded(measure: ImageMeasure) -> None:
    with pytest.raises(DecompressionBomb, match="40000x30000 pixels, at most 10000000"):
        measure.measure(content(png_of(40_000, 30_000)))


def test_what_cannot_be_decoded_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    data = file_of(scene(60, 80), "JPEG")
    image = content(data[: len(data) // 2])
    with pytest.raises(ImageError) as first:
        _ = image.pixels
    monkeypatch.delattr(image_content, "rgb_pixels")
    with pytest.raises(ImageError) as again:
        _ = image.luma
    assert again.value is first.value


def test_values_do_not_depend_on_what_else_is_asked_for() -> None:
    data = file_of(scene(700, 900), "JPEG")
    alone = [measure.measure(content(data)) for measure in MEASURES]
    for order in itertools.islice(itertools.permutations(range(len(MEASURES))), 0, 5040, 600):
        shared = content(data)
        values = {place: MEASURES[place].measure(shared) for place in order}
        assert [values[place] for place in range(len(MEASURES))] == alone


def test_values_fit_their_columns() -> None:
    image = content(file_of(scene(70, 90)))
    for measure in MEASURES:
        value = measure.measure(image)
        assert pa.array([value], measure.type).to_pylist() == [value]


def test_the_luma_is_that_of_the_standard() -> None:
    colours = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [9, 9, 9]]], np.uint8)
    assert content(file_of(colours)).luma.tolist() == [[76, 150, 29, 9]]


@pytest.mark.parametrize(
    ("library", "line"),
    [
        ("cv2", "A score of pixels needs opencv-python-headless: pip install 'mm-assets[scores]'"),
        ("pdqhash", "The perceptual hash needs pdqhash: pip install 'mm-assets[scores]'"),
        ("zxingcpp", "The area of QR codes needs zxing-cpp: pip install 'mm-assets[scores]'"),
    ],
)
def test_a_library_that_is_not_installed(library: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    image = content(file_of(scene(60, 80)))
    _ = image.small_luma if library != "cv2" else None
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ModuleNotFoundError) as caught:
        for measure in MEASURES:
            measure.measure(image)
    assert str(explained(caught.value)) == line


def test_sha256_needs_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("cv2", "pdqhash", "zxingcpp"):
        monkeypatch.setitem(sys.modules, library, None)
    assert len(Sha256().measure(content(file_of(scene(6, 8))))) == 64
