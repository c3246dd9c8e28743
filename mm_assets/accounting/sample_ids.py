"""Duplicate sample ids across shards, and the shard that keeps each.

This is for the graph, where all shards that ever existed count. For a single command, whose inputs are all
there is, see `mm_assets.cli.convert`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.accounting.survey_store import SurveyIndex, SurveyStore

_LEAST_IDS = 1 << 16  # fewer ids are not looked up at once


def duplicates(
    store: SurveyStore,
    run: Collection[str],
    landed: Collection[str],
    known: Collection[str],
    faulty: Callable[[str], Collection[str]] = lambda _: (),
    stuck: Collection[str] = (),
) -> dict[str, dict[str, str]]:
    """Return for each partition of the run the sample ids to leave out, with the partitions that keep them.

    A partition whose output has the id keeps it, unless the run makes that output again from a raw shard
    without it. Otherwise the partition with the smallest key keeps it, where sound samples come before faulty
    ones. Only files that may have one of the ids are read, a few at a time: memory grows with the ids of the
    run, and by one segment of the index.

    Args:
        store: surveys and published ids.
        run: partitions of the run.
        landed: partitions with an output.
        known: partitions that count: with a raw shard or an output.
        faulty: returns the ids of a partition's samples that will hardly be published; asked only about
            partitions whose ids others have, too.
        stuck: partitions of the run that will get no new output.

    Raises:
        ValueError: a partition of the run has no survey.
    """
    run_ids = dict(store.sample_ids(run))
    if missing := sorted(set(run) - set(run_ids)):
        raise ValueError(f"shard {missing[0]!r} has no survey")
    counts = pc.value_counts(_concat(run_ids.values()))
    ids = counts.field("values")
    best: dict[str, tuple[bool, bool, str]] = {}

    def add_candidates(partition: str, sample_ids: Collection[str], is_kept: bool) -> None:
        weak = faulty(partition) if sample_ids and not is_kept else ()
        for sample_id in sample_ids:
            candidate = (not is_kept, sample_id in weak, partition)
            best[sample_id] = min(best.get(sample_id, candidate), candidate)

    index = SurveyIndex(store)
    holders = index.published_sharing(landed, ids.to_pylist())
    surveyed = index.surveys_sharing(set(known) - set(run), ids.to_pylist())
    for partition, shared_ids in _shared(store.published_ids(holders), ids):
        if partition in run_ids and partition not in stuck and shared_ids:
            ids_left = set(
                run_ids[partition]
                .filter(pc.is_in(run_ids[partition], pa.array(shared_ids, pa.string())))
                .to_pylist()
            )
            shared_ids = [sample_id for sample_id in shared_ids if sample_id in ids_left]
        add_candidates(partition, shared_ids, is_kept=True)
    for partition, shared_ids in _shared(store.sample_ids(surveyed), ids):
        add_candidates(partition, shared_ids, is_kept=False)
    repeated = ids.filter(pc.greater(counts.field("counts"), 1)).to_pylist()
    contested = pa.array([*best, *repeated], pa.string())
    of_run = {
        partition: column.filter(pc.is_in(column, contested)).to_pylist()
        for partition, column in run_ids.items()
    }
    for partition, shared_ids in of_run.items():
        add_candidates(partition, shared_ids, is_kept=False)
    return {
        partition: {
            sample_id: best[sample_id][2] for sample_id in shared_ids if best[sample_id][2] != partition
        }
        for partition, shared_ids in of_run.items()
    }


def _shared(columns: Iterable[tuple[str, pa.ChunkedArray]], ids: pa.Array) -> Iterator[tuple[str, list[str]]]:
    """Yield for each partition its sample ids that are among ``ids``."""
    if not len(ids):
        return
    # Each lookup hashes all ``ids``, so at least as many other ids are looked up together.
    pending: list[tuple[str, pa.ChunkedArray]] = []
    filled = 0
    for partition, others in columns:
        pending.append((partition, others))
        filled += len(others)
        if filled >= max(len(ids), _LEAST_IDS):
            yield from _found(pending, ids)
            pending, filled = [], 0
    yield from _found(pending, ids)


def _found(pending: list[tuple[str, pa.ChunkedArray]], ids: pa.Array) -> Iterator[tuple[str, list[str]]]:
    others = _concat(column for _, column in pending)
    rows = pc.indices_nonzero(pc.is_in(others, ids)).to_numpy()
    values = others.take(pa.array(rows)).to_pylist()
    bounds = np.searchsorted(rows, np.cumsum([0, *(len(column) for _, column in pending)]))
    for (partition, _), low, high in zip(pending, bounds, bounds[1:], strict=False):
        yield partition, values[low:high]


def _concat(columns: Iterable[pa.ChunkedArray]) -> pa.ChunkedArray:
    return pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.string())
