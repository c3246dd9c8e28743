"""Sharpness: exact where the Laplacian is known, and the same number as OpenCV's in floating point."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from mm_assets.filters import measures
from mm_assets.filters.measures import Sharpness, SharpnessAtOneSize, laplacian_variance
from mm_assets_tests.filters.measures.contents import content_of, noise, scene


def in_floating_point(picture: np.ndarray) -> float:
    """The usual way, with eight bytes for each value."""
    return float(cv2.Laplacian(picture, cv2.CV_64F).var())


@pytest.mark.parametrize("grey", [0, 77, 255])
def test_a_flat_picture_has_none(grey: int) -> None:
    image = content_of(np.full((40, 700, 3), grey, np.uint8))
    assert (Sharpness().measure(image), SharpnessAtOneSize().measure(image)) == (0.0, 0.0)


@pytest.mark.parametrize("contrast", [1, 100, 255])
def test_a_chequerboard_of_pixels(contrast: int) -> None:
    """Every Laplacian is four times the contrast up or down: as many of either, so the mean is 0."""
    board = (np.indices((10, 14)).sum(0) % 2 * contrast).astype(np.uint8)
    assert Sharpness().measure(content_of(board)) == (4 * contrast) ** 2
    assert SharpnessAtOneSize().measure(content_of(board)) == (4 * contrast) ** 2


def test_one_bright_pixel() -> None:
    """The Laplacian is -4 there, 1 at four neighbours, 0 at the other 44: its mean is 0."""
    picture = np.zeros((7, 7), np.uint8)
    picture[3, 3] = 1
    assert Sharpness().measure(content_of(picture)) == (16 + 4) / 49


def test_the_mean_is_subtracted() -> None:
    """A bright pixel in a mirrored corner: -4, and 2 at both neighbours that see it twice."""
    picture = np.array([[0, 0], [0, 1]], np.uint8)
    values = np.array([0, 2, 2, -4])
    assert Sharpness().measure(content_of(picture)) == values.var()


@pytest.mark.parametrize(
    ("height", "width"), [(1, 1), (1, 2), (1, 41), (41, 1), (2, 2), (3, 5), (2, 99), (201, 333), (64, 64)]
)
def test_the_same_as_in_floating_point(height: int, width: int) -> None:
    for picture in (noise(height, width), noise(height, width)[..., 0]):
        assert laplacian_variance(picture) == pytest.approx(in_floating_point(picture), rel=1e-12)


@pytest.mark.parametrize("values", [1, 100, 999, 3 * 61, 3 * 61 * 5, 3 * 61 * 42, 3 * 61 * 43])
def test_strips_make_no_difference(values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = noise(43, 61)
    expected = laplacian_variance(picture)
    monkeypatch.setattr(measures, "STRIP_VALUES", values)
    assert laplacian_variance(picture) == expected


def test_larger_than_a_strip() -> None:
    picture = noise(801, 1003)
    assert picture.size > 2 * measures.STRIP_VALUES
    assert laplacian_variance(picture) == pytest.approx(in_floating_point(picture), rel=1e-12)


def test_no_strip_is_larger_than_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two bytes for each value, and a row above and below: never the whole picture in floating point."""
    seen = []
    original = cv2.Laplacian

    def noted(picture: np.ndarray, depth: int) -> np.ndarray:
        made = original(picture, depth)
        seen.append(made)
        return made

    monkeypatch.setattr(cv2, "Laplacian", noted)
    picture = noise(1500, 1000)
    laplacian_variance(picture)
    assert len(seen) > 3
    assert max(strip.nbytes for strip in seen) <= 2 * (measures.STRIP_VALUES + 2 * 1000 * 3)


def test_sums_are_exact_at_the_extremes() -> None:
    """Squares of a million values near the greatest: beyond what 32 bits hold."""
    board = (np.indices((1200, 1200)).sum(0) % 2 * 255).astype(np.uint8)
    board[0, 0] = 1
    values = cv2.Laplacian(board, cv2.CV_16S).astype(np.int64)
    total, squares = int(values.sum()), int((values**2).sum())
    assert laplacian_variance(board) == (board.size * squares - total**2) / board.size**2


def test_one_size_makes_sizes_comparable() -> None:
    """The same scene in two sizes: twofold at native size, alike at 512 pixels."""
    large = scene(1536, 2048)
    half = cv2.resize(large, (1024, 768), interpolation=cv2.INTER_AREA)
    sizes = content_of(large), content_of(half)
    native = [Sharpness().measure(image) for image in sizes]
    small = [SharpnessAtOneSize().measure(image) for image in sizes]
    assert native[0] > 2 * native[1]
    assert small[0] == pytest.approx(small[1], rel=0.2)


def test_one_size_leaves_small_pictures_alone() -> None:
    picture = noise(300, 512)
    luma = cv2.cvtColor(picture, cv2.COLOR_RGB2GRAY)
    assert SharpnessAtOneSize().measure(content_of(picture)) == pytest.approx(in_floating_point(luma))


@pytest.mark.parametrize(
    ("height", "width", "shape"), [(900, 1200, (384, 512)), (1, 3000, (1, 512)), (3000, 2, (512, 1))]
)
def test_the_small_picture(height: int, width: int, shape: tuple[int, int]) -> None:
    assert content_of(noise(height, width)).small_luma.shape == shape


def test_blur_lowers_both() -> None:
    sharp = scene(400, 600)
    blurred = cv2.GaussianBlur(sharp, (0, 0), 2)
    for measure in (Sharpness(), SharpnessAtOneSize()):
        assert measure.measure(content_of(blurred)) < measure.measure(content_of(sharp)) / 10
