"""Ownership of rows by partitions, and the Lance operation that removes rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.formats.lance.partitions import PartitionRecord
from mm_assets.formats.lance.snapshot import Snapshot, ids_predicate


class Ownership:
    """The partition of each row of one version, by the records of all partitions.

    A row in a data file that a record names belongs to that partition. Other files were made by compaction,
    or by someone's update, append or overwrite: there a row belongs to the partition whose live record has
    its sample id, else to none.
    """

    def __init__(self, snapshot: Snapshot, records: Mapping[str, Sequence[PartitionRecord]]) -> None:
        self._snapshot = snapshot
        self._records = records
        named = ((name, record) for name, entries in records.items() for record in entries)
        self.of_fragment = {id_: name for name, record in named for id_ in snapshot.all_fragment_ids(record)}

    def of_rows(
        self, rows: Collection[tuple[str, int]], ignored: Collection[str] = ()
    ) -> dict[tuple[str, int], str]:
        """Return (sample id, fragment) -> partition, "" for orphan rows.

        Args:
            ignored: partitions whose claims by sample id do not count.
        """
        unnamed = {sample_id for sample_id, fragment in rows if fragment not in self.of_fragment}
        owners = self.owners(unnamed, ignored)
        return {
            row: self.of_fragment.get(row[1]) or (owners[row[0]].partition if row[0] in owners else "")
            for row in rows
        }

    def owners(
        self, sample_ids: Collection[str], ignored: Collection[str] = ()
    ) -> dict[str, PartitionRecord]:
        """Return sample id -> the live record that has it."""
        if not sample_ids:
            return {}
        requested = pa.array(sorted(sample_ids), pa.string())
        found: dict[str, PartitionRecord] = {}
        for name, entries in self._records.items():
            live = self._snapshot.live(entries) if name not in ignored else None
            if live is not None:
                ids = live.sample_ids()
                found.update(dict.fromkeys(ids.filter(pc.is_in(ids, requested)).to_pylist(), live))
        return found


def removal_operation(
    snapshot: Snapshot, removed: Collection[int], rows: Mapping[int, Iterable[str]], new: Sequence[Any] = ()
) -> lance.LanceOperation.Update | None:
    """Return the operation that removes fragments and rows, and adds fragments.

    None if there is nothing to do.

    Args:
        removed: fragments to remove as a whole.
        rows: sample ids whose rows are removed, by fragment.
        new: fragments to add.
    """
    removed_ids, updated = set(removed), []
    for id_, sample_ids in rows.items():
        remaining = snapshot.fragment(id_).delete(ids_predicate(sorted(sample_ids)))
        if remaining is None:
            removed_ids.add(id_)
        else:
            updated.append(remaining)
    if not (removed_ids or updated or new):
        return None
    return lance.LanceOperation.Update(
        removed_fragment_ids=sorted(removed_ids), updated_fragments=updated, new_fragments=list(new)
    )
