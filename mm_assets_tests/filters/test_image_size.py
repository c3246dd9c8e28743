"""The filter on the shorter side of images."""

import pytest

from mm_assets.filters.registry import FILTERS, ImageSizeFilter, filters_of
from mm_assets.settings import Settings
from mm_assets_tests.filters.test_aspect_ratio import batch, image, kept


def test_bounds_are_of_the_shorter_side_and_inclusive() -> None:
    result = ImageSizeFilter(16, 32)(batch(image(16, 90), image(90, 32), image(15, 90), image(40, 33)))
    assert kept(result.batch) == [0, 2]
    assert [
        (loss.position, loss.kind, loss.reason, loss.score, loss.threshold) for loss in result.losses
    ] == [
        (4, "image_size", "smaller than min_side", 15, "16..32"),
        (6, "image_size", "larger than max_side", 33, "16..32"),
    ]


def test_settings() -> None:
    settings = Settings.load({"MM_MIN_IMAGE_SIDE": "64"})
    assert filters_of(FILTERS, settings.filter_values()) == (ImageSizeFilter(min_side=64),)
    assert ImageSizeFilter(min_side=64).threshold == "64..inf"
    with pytest.raises(ValueError, match="^MM_MIN_IMAGE_SIDE must be a whole number, not '6.5'$"):
        Settings.load({"MM_MIN_IMAGE_SIDE": "6.5"})
