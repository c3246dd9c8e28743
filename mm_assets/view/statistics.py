"""Set-wide statistics that filters look at, computed from what a storage has of all its shards.

Scores come from the stored ones, columns from curated Parquet: nothing is decoded, and no image is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from mm_assets.accounting import statistics_folder
from mm_assets.filters import Filter, spelled
from mm_assets.filters.measure import Score
from mm_assets.filters.measures import MeasureSelection, known_measures, names_of
from mm_assets.filters.registry import measures_for
from mm_assets.filters.scores import ImageScore, SampleScore
from mm_assets.filters.set_statistics import (
    StatisticError,
    StatisticsCollector,
    StatisticsFile,
    score_or_column,
)
from mm_assets.model.errors import counted
from mm_assets.view.preview_scores import ScoredShard, StoredScores, how_to_measure


@dataclass(frozen=True)
class ComputedStatistics:
    """Statistics that were computed.

    Attributes:
        values: number of values of each, by name.
        shards: number of the shards that they are of.
        left_out: lines on shards without scores of their rows as they are.
    """

    values: Mapping[str, int]
    shards: int
    left_out: Sequence[str] = ()

    def lines(self) -> list[str]:
        """Return what was computed, for people."""
        shards = counted(self.shards, "shard")
        lines = [f"{name}: {counted(values, 'value')} of {shards}" for name, values in self.values.items()]
        return [*lines, *self.left_out]


def missing_statistics(root: str, filters: Iterable[Filter[Any]]) -> list[str]:
    """Return the statistics that filters look at and that were not computed, sorted."""
    wanted = {name for judge in filters for name in judge.statistics()}
    newest = StatisticsFile.newest(statistics_folder(root)) if wanted else None
    return sorted(wanted.difference(newest.read().counted if newest is not None else ()))


def compute_statistics(
    root: str, filters: Iterable[Filter[Any]], progress: Callable[[int, int], None] = lambda done, of: None
) -> ComputedStatistics:
    """Compute the statistics that filters look at, and keep them in the storage.

    Args:
        root: storage root.
        filters: those that are turned on.
        progress: called with the shards that are done, and their number.

    Raises:
        StatisticError: a statistic cannot be computed, or scores that it is computed of are not stored.
        ValueError: there are no scores, or a file of them is damaged; in one line.
    """
    filters = [judge for judge in filters if judge.statistics()]
    if not filters:
        return ComputedStatistics({}, 0)
    stored = StoredScores(root, most=None)
    measures = measures_for(filters)
    require_scores(stored, measures)
    columns = sorted({name for judge in filters for name in judge.columns()})
    schemas = stored.schemas() if columns else {}
    for judge in filters:
        judge.fitted(schemas, (), "")
    kinds = {name: kind for judge in filters for kind in judge.kinds for name in judge.statistics()}
    with StatisticsCollector(kinds) as collector:
        for done, file_name in enumerate(stored.shards, start=1):
            shard = stored.read(
                file_name, names_of(measures.images), names_of(measures.samples), columns=columns
            )
            for name, kind in kinds.items():
                collector.add(name, _values(shard, kind, score_or_column(name)))
            progress(done, len(stored.shards))
        table = collector.table()
    StatisticsFile.publish(statistics_folder(root), table)
    return ComputedStatistics(collector.counted, len(stored.shards), left_out_lines(stored))


def left_out_lines(stored: StoredScores) -> list[str]:
    """Return a line for each reason that shards are without scores of their rows as they are."""
    return [f"without {counted(len(shards), 'shard')} {reason}" for reason, shards in stored.left_out.items()]


def require_scores(stored: StoredScores, measures: MeasureSelection) -> None:
    """Refuse to compute anything of scores that some shards lack.

    Raises:
        StatisticError: in one line that names a score, and says how to have it measured.
    """
    if missing := stored.missing(measures):
        name, shards = next(iter(missing.items()))
        raise StatisticError(f"{counted(shards, 'shard')} without the score {name}; {how_to_measure([name])}")


def _values(shard: ScoredShard, kind: type[Score], of: str) -> pa.Array | pa.ChunkedArray:
    """Return the values of a score or column of the images, texts or samples of a shard."""
    scores: Mapping[Any, Any]
    if kind is SampleScore:
        scores = dict(shard.samples)
    else:
        scores = shard.scores if kind is ImageScore else shard.item_refusals.texts
    known = known_measures()
    if of in kind.types(known.images if kind is ImageScore else known.samples):
        return pa.array([score.get(of) for score in scores.values()])
    columns = shard.row_keys.columns
    assert columns is not None, "columns are read where a statistic is computed of one"
    take: Any = columns.of_samples if kind is SampleScore else columns.of_items
    found = take(list(scores), [of])
    name = spelled(of, found.column_names)
    return pa.nulls(len(scores)) if name is None else found.column(name)
