"""The settings of filters as a resource."""

from __future__ import annotations

from dagster._config.pythonic_config import infer_schema_from_config_class

from mm_assets.filters.registry import FILTERS, AspectRatioFilter, settings_of
from mm_assets.graph.resources import FilterThresholds, filter_thresholds, resources_from_environment
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


def test_a_schema_that_is_kept_is_the_one_dagster_infers() -> None:
    resources = resources_from_environment()
    again = resources_from_environment()
    for name, made in resources.items():
        omitted = set(made.nested_resources)
        inferred = infer_schema_from_config_class(type(made), fields_to_omit=omitted)
        assert made._schema.config_type.key == inferred.config_type.key, name
        assert again[name]._schema is made._schema
