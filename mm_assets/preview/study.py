"""All that a preview says about some shards and filters, from one pass over the stored scores."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from mm_assets.filters.filter import Filter
from mm_assets.filters.measure_selection import names_of
from mm_assets.filters.measures.measuring import DECODE_ERROR, decoding
from mm_assets.filters.registry import measures_for
from mm_assets.preview.borderline import SCORES_DRAWN, Borderline
from mm_assets.preview.bounds import Numbers
from mm_assets.preview.nearest import Nearest
from mm_assets.preview.scored_shard import ScoredShard
from mm_assets.preview.stored_scores import StoredScores
from mm_assets.preview.what_if import WhatIf
from mm_assets.workers import WorkerFailure, WorkerPool

_PARTS: Final = 16  # that workers do; not their number, as the page would depend on it
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


@dataclass(frozen=True)
class _Job:
    """Some of the shards, which a worker looks at."""

    number: int
    stored: StoredScores
    shards: Sequence[str]
    filters: Sequence[Filter[Any]]
    measures: Sequence[Collection[str]]


@dataclass
class _Part:
    """What was found in some of the shards.

    Args:
        drawn: scores of images, and of samples.
    """

    counts: WhatIf
    borderline: Sequence[Borderline]
    drawn: tuple[Nearest[Any], Nearest[Any]] = field(
        default_factory=lambda: (Nearest(SCORES_DRAWN), Nearest(SCORES_DRAWN))
    )

    @classmethod
    def of(cls, filters: Sequence[Filter[Any]]) -> _Part:
        return cls(WhatIf(filters), [Borderline(judge) for judge in filters])

    def add(self, shard: ScoredShard) -> None:
        """Look at one more shard."""
        for found, decisions in zip(self.borderline, self.counts.add(shard), strict=True):
            found.add(shard, decisions)
        if not self.borderline:
            everything: list[list[Any]] = [
                list(shard.scores.values()),
                [score for _, score in shard.samples],
            ]
            for side, some in zip(self.drawn, everything, strict=True):
                side.add(np.zeros(len(some)), some.__getitem__)

    def merge(self, other: _Part) -> None:
        """Add what was found in other shards."""
        self.counts.merge(other.counts)
        for mine, theirs in zip(self.borderline, other.borderline, strict=True):
            mine.merge(theirs)
        for side, more in zip(self.drawn, other.drawn, strict=True):
            side.merge(more)


def study(
    stored: StoredScores,
    filters: Sequence[Filter[Any]],
    pool: WorkerPool | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Study:
    """Return what filters would do to shards.

    Args:
        pool: workers, for many shards; None: it is done here. The result is the same.
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
    measures: Sequence[Collection[str]] = stored.numbers()
    if filters:
        of_images = [*names_of(needed.images), *([DECODE_ERROR] if decoding(needed.images) else [])]
        measures = [of_images, names_of(needed.samples)]
    parts = min(_PARTS, len(stored.shards))
    jobs = [_Job(n, stored, stored.shards[n::parts], filters, measures) for n in range(parts)]
    done: dict[int, _Part] = {}
    results = ((job, _part_of(job)) for job in jobs) if pool is None else pool.map(_part_of, jobs)
    for job, part in results:
        if isinstance(part, WorkerFailure):
            raise ValueError(part.message)
        done[job.number] = part
        progress(sum(len(jobs[number].shards) for number in done))
    found = _Part.of(filters)
    for number in sorted(done):  # the same page, whichever part was ready first
        found.merge(done[number])
    distributions = {} if filters else _distributions(found.drawn, measures)
    return Study(found.counts, left_out, found.borderline, distributions)


def _part_of(job: _Job) -> _Part:
    part = _Part.of(job.filters)
    with _no_search_for_cycles():
        for file_name in job.shards:
            part.add(job.stored.read(file_name, *job.measures))
    return part


@contextmanager
def _no_search_for_cycles() -> Iterator[None]:
    """Keep Python from looking for cycles, a fifth of the time: scores are many objects, and have none."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _distributions(
    drawn: tuple[Nearest[Any], Nearest[Any]], measures: Sequence[Collection[str]]
) -> dict[str, Numbers]:
    found = {}
    for side, always, names in zip(drawn, (_IMAGE_NUMBERS, _SAMPLE_NUMBERS), measures, strict=True):
        for name in (*always, *sorted(names)):
            values = [value for score in side.things if (value := score.value(name)) is not None]
            if values:
                found[name] = np.array(values, np.float64)
    return found
