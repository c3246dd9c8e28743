"""Unique sample ids in the output of a command: the first partition keeps an id, others quarantine theirs.

The graph resolves the same among all shards that ever existed (`mm_assets.accounting.sample_ids`), from
surveys and published outputs, and a published shard comes before others. A command has neither: it reads the
ids of its inputs, and their order decides.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # commands start faster without pyarrow
    import pyarrow as pa

    from mm_assets.formats.conversion import Conversion
    from mm_assets.formats.partitions import Partition
    from mm_assets.interleaved.batch import InterleavedBatch
    from mm_assets.interleaved.losses import Loss
    from mm_assets.interleaved.steps import StepResult
    from mm_assets.workers import WorkerPool


@dataclass(frozen=True)
class QuarantineRepeatedIds:
    """Step that takes out samples whose id another partition keeps (``owners``: sample id -> partition)."""

    owners: Mapping[str, str]

    def __call__(self, batch: InterleavedBatch) -> StepResult:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        from mm_assets.interleaved.buffers import take_rows
        from mm_assets.interleaved.steps import StepResult

        table = batch.data
        is_taken = pc.is_in(table.column("sample_id"), pa.array(list(self.owners), pa.string())).to_numpy()
        if not is_taken.any():
            return StepResult(batch)
        removed = take_rows(table, np.flatnonzero(is_taken))
        return StepResult(
            batch.with_data(take_rows(table, np.flatnonzero(~is_taken))), self._losses(removed), removed
        )

    def _losses(self, removed: pa.Table) -> tuple[Loss, ...]:
        from mm_assets.interleaved.faults import DUPLICATE_ID
        from mm_assets.interleaved.losses import Loss

        seen: set[str] = set()
        losses = []
        for row in removed.select(["sample_id", "position", "modality"]).to_pylist():
            sample_id = row["sample_id"]
            is_cause = sample_id not in seen  # the sample's first row, its metadata
            seen.add(sample_id)
            reason = f"sample id {sample_id!r:.200} is already in partition {self.owners[sample_id]!r}"
            losses.append(
                Loss(**row, outcome="quarantined", kind=DUPLICATE_ID, reason=reason, is_cause=is_cause)
            )
        return tuple(losses)


def resolve_duplicates(
    conversions: Sequence[Conversion], pool: WorkerPool
) -> tuple[list[Conversion], list[str]]:
    """Resolve sample ids that several partitions share.

    The first partition with an id owns it. Under the policy ``error`` a later partition with that id is left
    out; under the others it quarantines those samples.

    Returns:
        The conversions that together make an output without duplicate ids, in order, and a message for each
        one left out.
    """
    from mm_assets.workers import WorkerFailure

    if len(conversions) < 2:
        return list(conversions), []
    answers = pool.map(sample_ids, conversions)
    # A partition that cannot be read fails when it is converted.
    found = {
        conversion.partition.name: ids for conversion, ids in answers if not isinstance(ids, WorkerFailure)
    }
    repeated = _repeated(found)
    owners: dict[str, Partition] = {}
    resolved: list[Conversion] = []
    messages: list[str] = []
    for conversion in conversions:
        partition = conversion.partition
        shared = repeated.get(partition.name, [])
        claimed_ids = {sample_id: owners[sample_id] for sample_id in shared if sample_id in owners}
        if claimed_ids and conversion.writer.on_materialize_error == "error":
            messages.append(_duplicate_message(partition, claimed_ids))
            continue
        owners.update({sample_id: partition for sample_id in shared if sample_id not in claimed_ids})
        if claimed_ids:
            step = QuarantineRepeatedIds({sample_id: owner.name for sample_id, owner in claimed_ids.items()})
            conversion = replace(conversion, steps=(step, *conversion.steps))
        resolved.append(conversion)
    return resolved, messages


def sample_ids(conversion: Conversion) -> pa.Array:
    """Return the distinct ids of a partition, without reading any image.

    Samples that the policy will drop because an item has an error do not own their id.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    ids = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the conversion itself warns again
        _, tables = conversion.reader.project(conversion.partition, ["sample_id", "materialize_error"])
        for table in tables:
            column = table.column("sample_id")
            if conversion.writer.on_materialize_error == "drop_sample":
                faulty = column.filter(pc.is_valid(table.column("materialize_error")))
                column = column.filter(pc.invert(pc.is_in(column, faulty)))
            ids += column.chunks
    return pc.unique(pa.chunked_array(ids, pa.string()))


def _repeated(found: Mapping[str, pa.Array]) -> dict[str, list[str]]:
    """Return for each partition the ids that another one has too."""
    import pyarrow as pa
    import pyarrow.compute as pc

    counts = pc.value_counts(pa.chunked_array(list(found.values()), pa.string()))
    repeated = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    if not len(repeated):
        return {}
    return {name: ids.filter(pc.is_in(ids, repeated)).to_pylist() for name, ids in found.items()}


def _duplicate_message(partition: Partition, claimed_ids: Mapping[str, Partition]) -> str:
    sample_id, owner = next(iter(claimed_ids.items()))
    more = f" (and {len(claimed_ids) - 1} more ids that others have)" if len(claimed_ids) > 1 else ""
    hint = (
        ""
        if len(claimed_ids) == 1
        else "; ids that start anew in each tar are told apart by --sample-id-prefix shard"
    )
    return f"{_place(partition)}: sample id {sample_id!r:.200} is already in {_place(owner)}{more}{hint}"


def _place(partition: Partition) -> str:
    files = ", ".join(partition.files[:3])
    return f"{files}, partition {partition.name!r}" if partition.fragments else files
