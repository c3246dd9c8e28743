"""What a preview counts is what the filters then do, for random samples and sets of filters."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pyarrow.compute as pc
from hypothesis import given

from mm_assets.filters import DROP_SAMPLE, FLAG, Filter
from mm_assets.filters.registry import (
    AspectRatioFilter,
    ImageCountFilter,
    ImageSizeFilter,
    WordCountFilter,
    chain_of,
    measures_for,
)
from mm_assets.filters.scores import ImageScores, SampleScores, score_samples, score_table
from mm_assets.interleaved import InterleavedBatch
from mm_assets.view.preview_scores import ScoredShard
from mm_assets.view.preview_study import Count, WhatIf
from mm_assets_tests.filters.filter_sets import FILTERS, SAMPLES, png, sample
from mm_assets_tests.formats.datasets import batch_of

WIDE, SQUARE, SMALL = png(90, 10), png(30, 30), png(4, 4)


def shard_of(batch: InterleavedBatch, filters: Sequence[Filter[Any]] = ()) -> ScoredShard:
    scores = score_table(batch.data), score_samples(batch.data, measures_for(filters).samples)
    return ScoredShard.of("a.parquet", ImageScores(scores[0]), SampleScores(scores[1]))


def counted(filters: Sequence[Filter[Any]], *samples: list[dict[str, Any]]) -> WhatIf:
    counts = WhatIf(filters)
    counts.add(shard_of(batch_of(list(itertools.chain(*samples))), filters))
    return counts


def dropped_by(filters: Sequence[Filter[Any]], batch: InterleavedBatch) -> Count:
    """What a chain takes out of a batch."""
    chain = chain_of(filters)
    removed = None if chain is None else chain(batch).removed
    if removed is None:
        return Count()
    kinds = removed.column("modality").to_pylist()
    nbytes = pc.sum(pc.binary_length(removed.column("binary_content"))).as_py() or 0
    return Count(len(kinds), kinds.count("image"), kinds.count("metadata"), nbytes)


@given(SAMPLES, FILTERS)
def test_counts_are_what_the_filters_do(contents: list[list[Any]], filters: list[Filter[Any]]) -> None:
    rows = [sample(f"s{number}", *found) for number, found in enumerate(contents)]
    batch = batch_of(list(itertools.chain(*rows)))
    counts = counted(filters, *rows)
    assert counts.given.items == batch.num_rows
    assert counts.given.samples == len(rows)
    assert counts.dropped == dropped_by(filters, batch)
    for count in counts.by_filter:
        others = [judge for judge in filters if judge is not count.filter]
        assert count.alone == dropped_by([count.filter], batch)
        assert counts.dropped - count.only_it == dropped_by(others, batch)
        chain = chain_of([count.filter])
        assert chain is not None
        assert count.flagged == len(chain(batch).flags)


def test_what_one_filter_drops_alone_and_what_only_it_drops() -> None:
    filters = (AspectRatioFilter(0, 2), ImageSizeFilter(20), WordCountFilter(2))
    samples = sample("a", "one two", WIDE, SQUARE, SMALL), sample("b", "one", WIDE)
    counts = counted(filters, *samples)
    wide, small = len(WIDE), len(SMALL)
    assert counts.given == Count(8, 4, 2, 2 * wide + small + len(SQUARE))
    assert counts.dropped == Count(5, 3, 1, 2 * wide + small)
    assert [(count.alone, count.only_it) for count in counts.by_filter] == [
        (Count(2, 2, 0, 2 * wide), Count(0, 0, 0, 0)),
        (Count(3, 3, 0, 2 * wide + small), Count(1, 1, 0, small)),
        (Count(3, 1, 1, wide), Count(2, 0, 1, 0)),
    ]


def test_flags_drop_nothing_and_samples_go_with_an_image() -> None:
    samples = sample("a", "one", WIDE, SQUARE), sample("b", "one", SQUARE)
    flagging, taking = AspectRatioFilter(0, 2, action=FLAG), AspectRatioFilter(0, 2, action=DROP_SAMPLE)
    (flagged,) = counted([flagging], *samples).by_filter
    assert (flagged.alone, flagged.flagged) == (Count(), 1)
    (taken,) = counted([taking], *samples).by_filter
    assert (taken.alone, taken.flagged) == (Count(4, 2, 1, len(WIDE) + len(SQUARE)), 0)


def test_images_that_could_not_be_measured_are_judged_by_no_filter() -> None:
    counts = counted([ImageSizeFilter(10**6), ImageCountFilter(1)], sample("a", b"no image", None))
    assert counts.unreadable == 2
    assert counts.dropped == Count(3, 2, 1, len(b"no image"))
    assert counts.by_filter[0].alone == Count()
