"""Which shard keeps a sample id that several have.

For one command, whose inputs are all there is, `mm_assets.cli.unique_ids` decides by their order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.accounting.survey_store import SurveyStore

_LEAST_IDS = 1 << 16  # looked up at once


def duplicates(
    store: SurveyStore,
    run: Collection[str],
    landed: Collection[str],
    known: Collection[str],
    faulty: Mapping[str, Collection[str]] | None = None,
    stuck: Collection[str] = (),
) -> dict[str, dict[str, str]]:
    """For each partition of the ``run``, the sample ids it must leave out, each with the partition that keeps
    it.

    A partition whose output has the id keeps it, unless the run makes that output anew from a raw shard
    without it; ``stuck`` are partitions of the run of which no new output will come. Else the id is that of
    the partition whose key sorts first; ``faulty`` are ids of samples that will hardly be published, by
    partition of the run: they yield to sound ones. ``landed`` are the partitions with an output, ``known``
    those that count: with a raw shard or an output. Raises ``ValueError`` for a partition of the run without
    a survey. Files are read a few at a time: memory grows with the ids of the run only.
    """
    weak = {partition: frozenset(ids) for partition, ids in (faulty or {}).items()}
    run_ids = dict(store.sample_ids(run))
    if missing := sorted(set(run) - set(run_ids)):
        raise ValueError(f"shard {missing[0]!r} has no survey")
    counts = pc.value_counts(_concat(run_ids.values()))
    ids = counts.field("values")
    best: dict[str, tuple[bool, bool, str]] = {}

    def register(partition: str, sample_ids: Iterable[str], is_kept: bool) -> None:
        for sample_id in sample_ids:
            mine = (not is_kept, not is_kept and sample_id in weak.get(partition, ()), partition)
            best[sample_id] = min(best.get(sample_id, mine), mine)

    for partition, shared in _shared(store.published_ids(landed), ids):
        if partition in run_ids and partition not in stuck and shared:
            still = set(
                run_ids[partition]
                .filter(pc.is_in(run_ids[partition], pa.array(shared, pa.string())))
                .to_pylist()
            )
            shared = [sample_id for sample_id in shared if sample_id in still]
        register(partition, shared, is_kept=True)
    for partition, shared in _shared(store.sample_ids(set(known) - set(run)), ids):
        register(partition, shared, is_kept=False)
    repeated = ids.filter(pc.greater(counts.field("counts"), 1)).to_pylist()
    contested = pa.array([*best, *repeated], pa.string())
    of_run = {
        partition: column.filter(pc.is_in(column, contested)).to_pylist()
        for partition, column in run_ids.items()
    }
    for partition, shared in of_run.items():
        register(partition, shared, is_kept=False)
    return {
        partition: {sample_id: best[sample_id][2] for sample_id in shared if best[sample_id][2] != partition}
        for partition, shared in of_run.items()
    }


def _shared(columns: Iterable[tuple[str, pa.ChunkedArray]], ids: pa.Array) -> Iterator[tuple[str, list[str]]]:
    """The sample ids of partitions that are among ``ids``, partition by partition."""
    if not len(ids):
        return
    # Each lookup hashes ``ids`` anew, so as many others as those are looked up together.
    waiting: list[tuple[str, pa.ChunkedArray]] = []
    filled = 0
    for partition, others in columns:
        waiting.append((partition, others))
        filled += len(others)
        if filled >= max(len(ids), _LEAST_IDS):
            yield from _found(waiting, ids)
            waiting, filled = [], 0
    yield from _found(waiting, ids)


def _found(waiting: list[tuple[str, pa.ChunkedArray]], ids: pa.Array) -> Iterator[tuple[str, list[str]]]:
    others = _concat(column for _, column in waiting)
    at = pc.indices_nonzero(pc.is_in(others, ids)).to_numpy()
    values = others.take(pa.array(at)).to_pylist()
    bounds = np.searchsorted(at, np.cumsum([0, *(len(column) for _, column in waiting)]))
    for (partition, _), low, high in zip(waiting, bounds, bounds[1:], strict=False):
        yield partition, values[low:high]


def _concat(columns: Iterable[pa.ChunkedArray]) -> pa.ChunkedArray:
    return pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.string())
