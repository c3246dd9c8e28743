"""The list of filters: what is in it is in the graph, the settings, `mm-assets convert` and the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mm_assets.filters.aspect_ratio import AspectRatioFilter
from mm_assets.filters.image_size import ImageSizeFilter
from mm_assets.filters.score_filter import FilterSetting, ScoreFilter

FILTERS: tuple[type[ScoreFilter], ...] = (AspectRatioFilter, ImageSizeFilter)
"""In the order in which they look at an image; the first that drops it is the one in the ledger."""


def settings_of(filters: Iterable[type[ScoreFilter]]) -> list[FilterSetting]:
    """The settings of some filters."""
    return [known for kind in filters for known in kind.settings().values()]


def filters_of(filters: Iterable[type[ScoreFilter]], values: Mapping[str, Any]) -> tuple[ScoreFilter, ...]:
    """The filters that these values by setting ask for; what is not set filters nothing."""
    return tuple(made for kind in filters if (made := kind.from_settings(values)) is not None)
