"""Images and samples on both sides of the bounds of a filter: which they are."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from mm_assets.filters.decisions import Decisions
from mm_assets.filters.filter import Filter
from mm_assets.filters.sample_filter import SampleFilter
from mm_assets.preview.bounds import distances, measured
from mm_assets.preview.nearest import Nearest
from mm_assets.preview.scored_shard import ScoredShard

IMAGES_A_SIDE: Final = 12
SAMPLES_A_SIDE: Final = 5
SCORES_DRAWN: Final = 10_000  # that curves are made of: they are off by one percent at most, 19 times of 20


@dataclass(frozen=True)
class Pick:
    """One image or sample, and the number that the verdict on it was about.

    Args:
        file_name: of its shard.
        position: of the image; None for a sample.
    """

    file_name: str
    sample_id: str
    position: int | None
    value: float | None


@dataclass
class Borderline:
    """The images or samples that are nearest to the bounds of a filter; without bounds any.

    Attributes:
        kept: those that the filter keeps, the nearest first.
        refused: those that it drops or flags.
        scores: some scores, drawn by lot, that stand for all.
    """

    filter: Filter[Any]
    _sides: tuple[Nearest[Pick], Nearest[Pick]] = field(init=False)
    _drawn: Nearest[Any] = field(default_factory=lambda: Nearest(SCORES_DRAWN))

    def __post_init__(self) -> None:
        limit = SAMPLES_A_SIDE if self.is_of_samples else IMAGES_A_SIDE
        self._sides = Nearest(limit), Nearest(limit)
        self.count = 0

    @property
    def is_of_samples(self) -> bool:
        return isinstance(self.filter, SampleFilter)

    @property
    def kept(self) -> Sequence[Pick]:
        return self._sides[0].things

    @property
    def refused(self) -> Sequence[Pick]:
        return self._sides[1].things

    @property
    def scores(self) -> Sequence[Any]:
        return self._drawn.things

    def add(self, shard: ScoredShard, decisions: Decisions) -> None:
        """Look at the images or samples of a shard.

        Args:
            decisions: what this filter alone decides.
        """
        scores: Mapping[Any, Any]
        hit: Collection[Any]
        if self.is_of_samples:
            scores = dict(shard.samples)
            rows = [*decisions.refusals, *(row for row, _ in decisions.flags)]
            hit = {shard.row_keys[row]["sample_id"] for row in rows}
        else:
            scores, hit = shard.scores, shard.image_refusals.of(self.filter)
        keys, found = list(scores), list(scores.values())
        values = measured(self.filter, found)
        far = distances(self.filter, values)
        is_refused = np.array([key in hit for key in keys], bool)
        self.count += len(keys)
        self._drawn.add(np.zeros(len(keys)), found.__getitem__)
        for side, is_wanted in zip(self._sides, (~is_refused, is_refused), strict=True):
            side.add(
                np.where(is_wanted, far, np.inf),
                lambda index: self._pick(shard, keys[index], float(values[index])),
            )

    def merge(self, other: Borderline) -> None:
        """Add what was found in other shards."""
        self.count += other.count
        self._drawn.merge(other._drawn)
        for side, more in zip(self._sides, other._sides, strict=True):
            side.merge(more)

    def _pick(self, shard: ScoredShard, key: Any, value: float) -> Pick:
        number = None if np.isnan(value) else value
        if self.is_of_samples:
            return Pick(shard.file_name, key, None, number)
        row_key = shard.row_keys[key]
        return Pick(shard.file_name, row_key["sample_id"], row_key["position"], number)
