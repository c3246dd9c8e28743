"""Base class of filters that judge whole samples by their scores."""

from __future__ import annotations

from dataclasses import dataclass

from mm_assets.filters.filter import DROP_SAMPLE, FLAG, Filter
from mm_assets.filters.sample_scores import SampleScore


@dataclass(frozen=True)
class SampleFilter(Filter[SampleScore]):
    """Refuses the samples for which `verdict` returns a reason.

    The images of a sample are counted as the filters of images have left them.
    """

    actions = (DROP_SAMPLE, FLAG)
