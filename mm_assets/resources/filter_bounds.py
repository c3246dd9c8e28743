"""Thresholds of the filters, as one thing to configure."""

from typing import Any

import dagster as dg
from pydantic import Field


class FilterBounds(dg.ConfigurableResource[Any]):
    """Bounds of the aspect-ratio filter, both inclusive. Changing them re-filters from stored scores: no image is read again."""

    min_aspect_ratio: float = Field(default=1.0, ge=0)
    max_aspect_ratio: float = Field(default=2.0, gt=0)
