"""Scalar indexes of a table: creation, extension to all rows, and validation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import lance

from mm_assets.formats.lance.damage import is_readable
from mm_assets.formats.lance.partitions import PartitionRecord
from mm_assets.formats.lance.snapshot import Snapshot
from mm_assets.interleaved.schema import MODALITIES

_INDEXES: dict[str, Any] = {"sample_id": "BTREE", "modality": "BITMAP"}


def cover_all_rows(dataset: lance.LanceDataset) -> int:
    """Create missing or unreadable indexes, and extend those that do not cover every fragment.

    No version is made when there is nothing to do, or no rows.

    Returns:
        The table's version.
    """
    if not dataset.get_fragments():
        return int(dataset.version)
    present = _present(dataset)
    is_incomplete = False
    for column, kind in _INDEXES.items():
        name = present.get((column, kind))
        if name is None or not is_readable(dataset.uri, lambda name=name: dataset.stats.index_stats(name)):  # type: ignore[misc]
            dataset.create_scalar_index(column, kind, name=name)
        else:
            is_incomplete |= dataset.stats.index_stats(name)["num_unindexed_fragments"] > 0
    if is_incomplete:
        dataset.optimize.optimize_indices()
    return int(dataset.version)


def rebuild(dataset: lance.LanceDataset) -> None:
    """Create the indexes again, from the rows."""
    present = _present(dataset)
    for column, kind in _INDEXES.items():
        dataset.create_scalar_index(column, kind, name=present.get((column, kind)))


def has_sound_indexes(uri: str, snapshot: Snapshot, records: Mapping[str, Sequence[PartitionRecord]]) -> bool:
    """Return whether the indexes find all rows that some partitions have in their own fragments.

    Rows are looked up by sample id and by modality.
    """

    def compare() -> None:
        intact = [
            record
            for entries in records.values()
            for record in entries
            if record.rows == snapshot.present_rows(record) > 0
        ]
        for record in intact:
            if sum(1 for _ in snapshot.rows_of(record.sample_ids())) != record.rows:
                raise ValueError(f"not all rows of partition {record.partition!r} are found by sample id")
        fragments = [snapshot.fragment(id_) for record in intact for id_ in snapshot.fragment_ids(record)]
        for modality in MODALITIES if fragments else ():
            query: dict[str, Any] = {"filter": f"modality = '{modality}'", "fragments": fragments}
            found, expected = (
                snapshot.dataset.scanner(**query, use_scalar_index=use).count_rows() for use in (True, False)
            )
            if found != expected:
                raise ValueError(f"{found} of {expected} rows are found by modality {modality!r}")

    return is_readable(uri, compare)


def _present(dataset: lance.LanceDataset) -> dict[tuple[str, str], str]:
    """Return column and kind -> name of the index."""
    # The index's details are named for its kind: "/lance.table.BTreeIndexDetails".
    found = {
        (tuple(i.field_names), i.type_url.rsplit(".", 1)[-1].upper()): i.name
        for i in dataset.describe_indices()
    }
    details_of = {(column, kind): ((column,), f"{kind}INDEXDETAILS") for column, kind in _INDEXES.items()}
    return {key: found[details] for key, details in details_of.items() if details in found}
