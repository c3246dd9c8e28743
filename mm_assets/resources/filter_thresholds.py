"""Thresholds of the filters, as one thing to configure."""

from typing import Any

import dagster as dg
from pydantic import Field

from mm_assets.filters.aspect_ratio import AspectRatioFilter


class FilterThresholds(dg.ConfigurableResource[Any]):
    """Bounds of the aspect-ratio filter, both inclusive; unset ones keep everything.

    Changing them re-filters from stored scores: no image is read again.
    """

    min_aspect_ratio: float | None = Field(default=None, ge=0)
    max_aspect_ratio: float | None = Field(default=None, gt=0)

    def steps(self) -> tuple[AspectRatioFilter, ...]:
        """The filters that these bounds ask for."""
        bounds = AspectRatioFilter.between(self.min_aspect_ratio, self.max_aspect_ratio)
        return () if bounds is None else (bounds,)
