"""Base class of filters that judge images by their scores: a filter adds a name, settings and a verdict."""

from __future__ import annotations

from dataclasses import dataclass

from mm_assets.filters.filter import DROP_ITEM, DROP_SAMPLE, FLAG, Filter
from mm_assets.filters.filter_chain import FilterChain
from mm_assets.filters.filter_settings import maximum as maximum
from mm_assets.filters.filter_settings import minimum as minimum
from mm_assets.filters.filter_settings import setting as setting
from mm_assets.filters.image_scores import ImageScore
from mm_assets.interleaved.batch import InterleavedBatch
from mm_assets.interleaved.steps import StepResult


@dataclass(frozen=True)
class ScoreFilter(Filter[ImageScore]):
    """Refuses the image rows for which `verdict` returns a reason.

    Where they are dropped, nothing else changes: positions keep their gaps, samples without images stay, rows
    with an error stay for the policy. An image that cannot be read becomes an error row; it is not dropped.
    """

    actions = (DROP_ITEM, DROP_SAMPLE, FLAG)

    def __call__(self, batch: InterleavedBatch) -> StepResult:
        """Apply this filter alone."""
        return FilterChain((self,))(batch)
