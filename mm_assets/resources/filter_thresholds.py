"""Filters and the scores they look at, as a Dagster resource."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import dagster as dg
from pydantic import Field, create_model

from mm_assets.filters.filter import Filter
from mm_assets.filters.filter_chain import FilterChain
from mm_assets.filters.filter_settings import FilterSetting
from mm_assets.filters.measure_selection import MeasureSelection
from mm_assets.filters.registry import chain_of, filters_of, measures_for, settings_of


class FilterThresholds(dg.ConfigurableResource[Any]):
    """The settings of the filters; unset ones keep everything.

    `filter_thresholds` creates a subclass with the fields. Changed settings are applied to stored scores: no
    image is read again.
    """

    filters: ClassVar[tuple[type[Filter[Any]], ...]] = ()

    filter_actions: list[str] = Field(
        default=[], description="What filters do with what they refuse, as sharpness=flag."
    )
    scores: list[str] = Field(
        default=[], description="Scores that are measured although no filter needs them."
    )

    def active(self) -> tuple[Filter[Any], ...]:
        """Return the filters that are turned on by these settings."""
        values = {known.name: getattr(self, known.name) for known in settings_of(self.filters)}
        return filters_of(self.filters, values, self.filter_actions)

    def chain(self) -> FilterChain | None:
        """Return the filters that are turned on as one step; None where none is."""
        return chain_of(self.active())

    def measures(self) -> MeasureSelection:
        """Return the measures that these filters look at, and those of further scores."""
        return measures_for(self.active(), self.scores)


def filter_thresholds(
    filters: tuple[type[Filter[Any]], ...],
    values: Mapping[str, Any],
    filter_actions: Sequence[str] = (),
    scores: Sequence[str] = (),
) -> FilterThresholds:
    """Return the resource with a field for each setting of the filters.

    Args:
        values: values by setting.
        filter_actions: what filters do with what they refuse, each as ``filter=action``.
        scores: further scores that are measured.
    """
    fields: dict[str, Any] = {known.name: _field(known) for known in settings_of(filters)}
    made = create_model(
        "FilterThresholds", __base__=FilterThresholds, __doc__=FilterThresholds.__doc__, **fields
    )
    made.filters = filters
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return made(filter_actions=list(filter_actions), scores=list(scores), **given)


def _field(known: FilterSetting) -> tuple[Any, Any]:
    if known.kind not in (float, int):
        return (list[str] if known.kind is tuple else str) | None, Field(None, description=known.meaning)
    least: dict[str, Any] = {"gt": 0} if known.is_upper_bound else {"ge": 0}
    return known.kind | None, Field(None, description=known.meaning, **least)
