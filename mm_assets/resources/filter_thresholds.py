"""Thresholds of the filters, as a Dagster resource."""

from collections.abc import Mapping
from typing import Any, ClassVar

import dagster as dg
from pydantic import Field, create_model

from mm_assets.filters.registry import filters_of, settings_of
from mm_assets.filters.score_filter import FilterSetting, ScoreFilter


class FilterThresholds(dg.ConfigurableResource[Any]):
    """The settings of the filters; unset ones keep everything.

    `filter_thresholds` creates a subclass with the fields. Changed settings are applied to stored scores: no
    image is read again.
    """

    filters: ClassVar[tuple[type[ScoreFilter], ...]] = ()

    def steps(self) -> tuple[ScoreFilter, ...]:
        """Return the filters that are turned on by these settings."""
        values = {known.name: getattr(self, known.name) for known in settings_of(self.filters)}
        return filters_of(self.filters, values)


def filter_thresholds(filters: tuple[type[ScoreFilter], ...], values: Mapping[str, Any]) -> FilterThresholds:
    """Return the resource with a field for each setting of the filters.

    Args:
        values: values by setting.
    """
    fields: dict[str, Any] = {known.name: _field(known) for known in settings_of(filters)}
    made = create_model(
        "FilterThresholds", __base__=FilterThresholds, __doc__=FilterThresholds.__doc__, **fields
    )
    made.filters = filters
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return made(**given)


def _field(known: FilterSetting) -> tuple[Any, Any]:
    if known.kind not in (float, int):
        return (list[str] if known.kind is tuple else str) | None, Field(None, description=known.meaning)
    least: dict[str, Any] = {"gt": 0} if known.is_upper_bound else {"ge": 0}
    return known.kind | None, Field(None, description=known.meaning, **least)
