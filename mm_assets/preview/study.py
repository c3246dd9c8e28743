"""All that a preview says about some shards and filters, from one pass over the stored scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from mm_assets.filters.filter import Filter
from mm_assets.filters.registry import measures_for
from mm_assets.preview.borderline import Borderline
from mm_assets.preview.bounds import Numbers
from mm_assets.preview.nearest import Nearest
from mm_assets.preview.stored_scores import StoredScores
from mm_assets.preview.what_if import WhatIf

_SCORES: Final = 10_000
_IMAGE_NUMBERS: Final = ("width", "height", "aspect_ratio", "byte_size")
_SAMPLE_NUMBERS: Final = ("images", "texts", "words", "images_per_word")


@dataclass
class Study:
    """What was found.

    Args:
        left_out: filters whose scores are not stored, with the number of shards that lack each measure.
        borderline: for each of the other filters.
        distributions: without filters: values of each stored score, drawn by lot if there are many.
    """

    counts: WhatIf
    left_out: Mapping[str, Mapping[str, int]]
    borderline: Sequence[Borderline] = ()
    distributions: Mapping[str, Numbers] = field(default_factory=dict)


def study(
    stored: StoredScores, filters: Sequence[Filter[Any]], progress: Callable[[int], None] = lambda done: None
) -> Study:
    """Return what filters would do to shards.

    Args:
        progress: called with the number of shards that are done.

    Raises:
        ValueError: in one line, for damaged scores and for filters that fail.
    """
    needed = measures_for(filters)
    missing = stored.missing(needed)
    left_out = {
        judge.name: lacking
        for judge in filters
        if (lacking := {name: missing[name] for name in judge.needs() if name in missing})
    }
    filters = [judge for judge in filters if judge.name not in left_out]
    counts = WhatIf(filters)
    borderline = [Borderline(judge) for judge in filters]
    measures = [{measure.name for measure in some} for some in (needed.images, needed.samples)]
    drawn: tuple[Nearest[Any], Nearest[Any]] = Nearest(_SCORES), Nearest(_SCORES)
    if not filters:
        measures = [set(names) for names in stored.numbers()]
    for done, file_name in enumerate(stored.shards, start=1):
        shard = stored.read(file_name, *measures)
        for found, judgement in zip(borderline, counts.add(shard), strict=True):
            found.add(shard, judgement)
        if not filters:
            everything: list[list[Any]] = [list(shard.scores.values()), [s for _, s in shard.samples]]
            for side, some in zip(drawn, everything, strict=True):
                side.add(np.zeros(len(some)), some.__getitem__)
        progress(done)
    distributions = {} if filters else _distributions(drawn, measures)
    return Study(counts, left_out, borderline, distributions)


def _distributions(
    drawn: tuple[Nearest[Any], Nearest[Any]], measures: Sequence[set[str]]
) -> dict[str, Numbers]:
    found = {}
    for side, always, names in zip(drawn, (_IMAGE_NUMBERS, _SAMPLE_NUMBERS), measures, strict=True):
        for name in (*always, *sorted(names)):
            values = [value for score in side.things if (value := score.value(name)) is not None]
            if values:
                found[name] = np.array(values, np.float64)
    return found
