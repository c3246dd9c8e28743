"""Curves: what a bound would keep elsewhere, as SVG that is well-formed whatever the scores are."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from mm_assets.filters import Filter, bounds_of
from mm_assets.filters.registry import (
    AspectRatioFilter,
    ImageSizeFilter,
    QrAreaFilter,
    SharpnessFilter,
    WordCountFilter,
)
from mm_assets.filters.scores import ImageScore, SampleScore
from mm_assets.view.preview_page import curve_of, curve_svg, histogram_svg
from mm_assets.view.preview_scores import distances

SIDES = [ImageScore(side, side) for side in range(1, 101)]


def test_shares_are_the_verdicts_at_each_place() -> None:
    judge = ImageSizeFilter(20, 80)
    lower, upper = bounds_of(judge)
    assert [(bound.setting, bound.value, bound.is_upper) for bound in (lower, upper)] == [
        ("min_image_side", 20, False),
        ("max_image_side", 80, True),
    ]
    curve = curve_of(judge, lower, SIDES)
    assert dict(zip(curve.places.tolist(), curve.shares.tolist(), strict=True)) == {
        side: (81 - side) / 100 for side in range(1, 81)
    }
    curve = curve_of(judge, upper, SIDES)
    assert dict(zip(curve.places.tolist(), curve.shares.tolist(), strict=True)) == {
        side: (side - 19) / 100 for side in range(20, 101)
    }


def test_bounds_that_are_not_set_have_no_curve() -> None:
    assert [bound.setting for bound in bounds_of(AspectRatioFilter(max_ratio=2))] == ["max_aspect_ratio"]


def test_distances_are_those_to_the_nearest_bound() -> None:
    values = np.array([0.0, 19, 21, 78, np.nan])
    assert distances(ImageSizeFilter(20, 80), values).tolist() == [20, 1, 1, 2, np.inf]


@pytest.mark.parametrize(
    ("judge", "scores"),
    [
        (ImageSizeFilter(20), SIDES),
        (ImageSizeFilter(20), SIDES[:1]),
        (ImageSizeFilter(20), []),
        (AspectRatioFilter(max_ratio=2), [ImageScore(2, 1), ImageScore(4, 2)]),
        (SharpnessFilter(80), [ImageScore(1, 1, values={"sharpness": 2.0**n}) for n in range(-9, 20)]),
        (SharpnessFilter(80), [ImageScore(1, 1, values={"sharpness": None})]),
        (WordCountFilter(10**9), [SampleScore(words=n) for n in range(10)]),
    ],
)
def test_svg_is_well_formed_and_marks_the_bound(judge: Filter[Any], scores: list[Any]) -> None:
    (bound,) = bounds_of(judge)
    svg = curve_svg(curve_of(judge, bound, scores), "images")
    root = ElementTree.fromstring(svg)
    assert root.find("title").text == f"share of images kept by {bound.setting}"  # type: ignore[union-attr]
    texts = [found.text for found in root.iter("text")]
    assert f"{bound.setting} {bound.value:g}" in texts
    assert {"0%", "50%", "100%"} <= set(texts)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    assert not re.search("nan|inf", re.sub("<title>.*</title>", "", svg))
    for path in root.iter("path"):
        for x, y in re.findall(r"M(-?[\d.]+) (-?[\d.]+)", path.attrib["d"]):
            assert 0 <= float(x) <= width and 0 <= float(y) <= height


@pytest.mark.parametrize("values", [[1.0], [0.0, 0.0], [1e-3, 1.0, 1e6], [-5.0, 5.0]])
def test_distributions(values: list[float]) -> None:
    root = ElementTree.fromstring(histogram_svg("a <score>", np.array(values)))
    assert root.find("title").text == "distribution of a <score>"  # type: ignore[union-attr]
    assert len(list(root.iter("text"))) >= 1


def _marks(svg: str) -> set[str]:
    """Return the numbers along the axis."""
    return set(re.findall(r">([\d.,]+k?)<", svg))


def test_blank_pages_do_not_press_all_others_against_the_edge() -> None:
    sharp = [ImageScore(1, 1, values={"sharpness": value}) for value in [0.0, 0.0, *np.geomspace(1, 1e5, 98)]]
    judge = SharpnessFilter(30)
    (bound,) = (found for found in bounds_of(judge) if not found.is_upper)
    marks = _marks(curve_svg(curve_of(judge, bound, sharp), "images"))
    assert {"10", "100", "1,000", "10k"} <= marks


def test_the_axis_goes_on_behind_an_upper_bound_that_few_exceed() -> None:
    areas = [0.0] * 998 + [0.3, 0.8]
    judge = QrAreaFilter(0.1)
    (bound,) = bounds_of(judge)
    svg = curve_svg(
        curve_of(judge, bound, [ImageScore(1, 1, values={"qr_area": a}) for a in areas]), "images"
    )
    assert "0.7" in _marks(svg) or "0.8" in _marks(svg)
