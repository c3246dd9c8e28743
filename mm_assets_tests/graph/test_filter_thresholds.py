"""The settings of filters as a resource."""

from __future__ import annotations

from mm_assets.filters.registry import FILTERS, AspectRatioFilter, settings_of
from mm_assets.graph.resources import FilterThresholds, filter_thresholds
from mm_assets.settings import Settings
from mm_assets_tests.filters.test_score_filter import FormatFilter


def test_each_setting_is_a_field() -> None:
    names = {known.name for known in settings_of(FILTERS)}
    assert set(type(filter_thresholds(FILTERS, {})).model_fields) == names | {
        "filter_actions",
        "scores",
        "root",
    }


def test_the_resource_has_the_settings_of_the_environment() -> None:
    settings = Settings.load({"MM_MAX_ASPECT_RATIO": "2"})
    assert settings.filter_values()["max_aspect_ratio"] == 2
    thresholds = filter_thresholds(settings.filters, settings.filter_values())
    assert thresholds.active() == (AspectRatioFilter(0, 2),)
    assert filter_thresholds((FormatFilter,), {"image_formats": ("png", "jpg")}).active() == (
        FormatFilter(wanted=("png", "jpg")),
    )


def test_the_resource_is_described_in_the_ui() -> None:
    assert type(filter_thresholds(FILTERS, {})).__doc__ == FilterThresholds.__doc__
