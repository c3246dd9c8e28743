"""Whose a row is, and the operation that takes rows out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.formats.lance.partitions import PartitionRecord
from mm_assets.formats.lance.snapshot import Snapshot, ids_predicate


class Ownership:
    """Whose each row of one version is, by the records of all partitions.

    A row in a data file that a record names is that partition's. Other files were made by compaction, or by
    someone's update, append or overwrite: there a row is the partition's whose live record has its sample id,
    else nobody's.
    """

    def __init__(self, snapshot: Snapshot, records: Mapping[str, Sequence[PartitionRecord]]) -> None:
        self._snapshot = snapshot
        self._records = records
        named = ((name, record) for name, entries in records.items() for record in entries)
        self.of_fragment = {id_: name for name, record in named for id_ in snapshot.all_fragment_ids(record)}

    def of_rows(
        self, rows: Collection[tuple[str, int]], besides: Collection[str] = ()
    ) -> dict[tuple[str, int], str]:
        """(sample id, fragment) -> partition, "" for nobody's.

        What partitions in ``besides`` claim by sample id counts for nothing.
        """
        unnamed = {sample_id for sample_id, fragment in rows if fragment not in self.of_fragment}
        owners = self.owners(unnamed, besides)
        return {
            row: self.of_fragment.get(row[1]) or (owners[row[0]].partition if row[0] in owners else "")
            for row in rows
        }

    def owners(
        self, sample_ids: Collection[str], besides: Collection[str] = ()
    ) -> dict[str, PartitionRecord]:
        """Sample id -> the live record that has it."""
        if not sample_ids:
            return {}
        wanted = pa.array(sorted(sample_ids), pa.string())
        found: dict[str, PartitionRecord] = {}
        for name, entries in self._records.items():
            live = self._snapshot.live(entries) if name not in besides else None
            if live is not None:
                ids = live.sample_ids()
                found.update(dict.fromkeys(ids.filter(pc.is_in(ids, wanted)).to_pylist(), live))
        return found


def taking_out(
    snapshot: Snapshot, removed: Collection[int], rows: Mapping[int, Iterable[str]], new: Sequence[Any] = ()
) -> lance.LanceOperation.Update | None:
    """The operation that takes out whole fragments, and of others the ``rows`` of some sample ids, and adds
    ``new`` ones.

    None when there is nothing to do.
    """
    gone, updated = set(removed), []
    for id_, sample_ids in rows.items():
        left = snapshot.fragment(id_).delete(ids_predicate(sorted(sample_ids)))
        if left is None:
            gone.add(id_)
        else:
            updated.append(left)
    if not (gone or updated or new):
        return None
    return lance.LanceOperation.Update(
        removed_fragment_ids=sorted(gone), updated_fragments=updated, new_fragments=list(new)
    )
