"""What filters would drop, each alone and all together, counted over shards by the graph's own decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from mm_assets.filters.decisions import Decisions
from mm_assets.filters.filter import Filter
from mm_assets.filters.filter_chain import FilterChain
from mm_assets.preview.scored_shard import ScoredShard


@dataclass(frozen=True)
class Count:
    """Numbers of items, of the images and samples among them, and bytes of the images."""

    items: int = 0
    images: int = 0
    samples: int = 0
    nbytes: int = 0

    def __add__(self, other: Self) -> Count:
        return Count(
            self.items + other.items,
            self.images + other.images,
            self.samples + other.samples,
            self.nbytes + other.nbytes,
        )

    def __sub__(self, other: Self) -> Count:
        return Count(
            self.items - other.items,
            self.images - other.images,
            self.samples - other.samples,
            self.nbytes - other.nbytes,
        )


@dataclass
class FilterCount:
    """What one filter does.

    Attributes:
        alone: what it drops where it is the only filter.
        only_it: what stays if it is left out of all filters, and goes with it.
        flagged: images or samples that it lists and keeps, where it is the only filter.
    """

    filter: Filter[Any]
    alone: Count = Count()
    only_it: Count = Count()
    flagged: int = 0


@dataclass
class WhatIf:
    """Counts over the shards that were added.

    Attributes:
        given: what there is.
        unreadable: images of which no score could be measured; filters do not judge them.
        dropped: what all filters drop together.
        by_filter: in the order of the filters.
    """

    filters: Sequence[Filter[Any]]
    given: Count = Count()
    unreadable: int = 0
    dropped: Count = Count()
    by_filter: list[FilterCount] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.by_filter = [FilterCount(judge) for judge in self.filters]
        self._all = FilterChain.of(self.filters)
        self._alone = [FilterChain.of([judge]) for judge in self.filters]
        self._others = [FilterChain.of(f for f in self.filters if f is not judge) for judge in self.filters]

    def add(self, shard: ScoredShard) -> list[Decisions]:
        """Count a shard; return what each filter alone decides about its rows."""
        rows = np.arange(len(shard.items))
        self.given += _count(shard, rows)
        self.unreadable += shard.images - len(shard.scores)
        alone = [decide(chain, shard) for chain in self._alone]
        together = alone[0] if len(alone) == 1 else decide(self._all, shard)
        dropped = _dropped(shard, together)
        self.dropped += dropped
        for count, decisions, others in zip(self.by_filter, alone, self._others, strict=True):
            count.alone += _dropped(shard, decisions)
            count.flagged += len(decisions.flags)
            # A filter that decides nothing changes nothing: at most that images are found to be faulty.
            decides = any(refusal.filter is count.filter for refusal in together.refusals.values())
            if decides or shard.images > len(shard.scores):
                count.only_it += dropped - _dropped(shard, decide(others, shard))
        return alone

    def merge(self, other: WhatIf) -> None:
        """Add the counts over other shards, of the same filters."""
        self.given += other.given
        self.unreadable += other.unreadable
        self.dropped += other.dropped
        for count, more in zip(self.by_filter, other.by_filter, strict=True):
            count.alone += more.alone
            count.only_it += more.only_it
            count.flagged += more.flagged


def decide(chain: FilterChain, shard: ScoredShard) -> Decisions:
    """Return what a chain decides about the rows of a shard."""
    row_keys = shard.row_keys if chain.images else shard.unscored_row_keys
    return chain.decide(row_keys, shard.image_refusals, lambda: shard.samples)


def _dropped(shard: ScoredShard, decisions: Decisions) -> Count:
    return _count(shard, np.fromiter(decisions.refusals, np.int64, len(decisions.refusals)))


def _count(shard: ScoredShard, rows: np.typing.NDArray[np.int64]) -> Count:
    images = int(np.count_nonzero(rows < shard.images))
    return Count(int(shard.items[rows].sum()), images, len(rows) - images, int(shard.nbytes[rows].sum()))
