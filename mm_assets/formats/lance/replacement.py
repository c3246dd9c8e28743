"""What one commit takes out of a table and puts in, so that the named partitions, and nothing else, are
replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import lance
import pyarrow as pa

from mm_assets.formats.lance.fragments import FragmentSet
from mm_assets.formats.lance.ownership import Ownership, taking_out
from mm_assets.formats.lance.partitions import PartitionRecord
from mm_assets.formats.lance.snapshot import Snapshot

AllRecords = Callable[[], Mapping[str, Sequence[PartitionRecord]]]


class Replacement:
    """The difference between one version of the table and the partitions as they shall be.

    ``pending`` are the sets that the version does not have yet, ``kept`` the records of those that it has,
    ``removed`` the fragments to take out, ``obsolete`` the records that stand for nothing once this is done.
    What the version has of partitions named in ``afresh`` counts for nothing.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        records: Mapping[str, Sequence[PartitionRecord]],
        sets: Sequence[FragmentSet],
        afresh: Collection[str] = (),
    ) -> None:
        self.snapshot = snapshot
        self._afresh = afresh
        self.pending: list[FragmentSet] = []
        self.kept: list[PartitionRecord] = []
        self.removed: set[int] = set()
        self.obsolete: list[PartitionRecord] = []
        self._previous: list[
            PartitionRecord
        ] = []  # of the pending: one of them has rows now, perhaps in files that no record names
        self._deleted: dict[int, set[str]] = {}  # fragment -> sample ids whose rows go
        for fragments in sets:
            self._compare(fragments, records[fragments.partition])

    def _compare(self, fragments: FragmentSet, records: Sequence[PartitionRecord]) -> None:
        live = self.snapshot.live(records)
        present = {id_ for record in records for id_ in self.snapshot.all_fragment_ids(record)}
        is_trusted = fragments.partition not in self._afresh
        if live is not None and is_trusted and live.holds(fragments) and self.snapshot.surely_has(live):
            self.kept.append(live)
            present -= set(self.snapshot.fragment_ids(live))
        elif live is not None or fragments.rows:
            self.pending.append(fragments)
            self._previous += records
        self.removed |= present
        self.obsolete += [r for r in records if r.may_be_deleted() and not (r is live and live in self.kept)]

    def resolve_rows(self, all_records: AllRecords) -> bool:
        """Find the rows to delete out of files that no record names, and refuse sample ids that other
        partitions have.

        They are those with a sample id that the partitions replaced have or had and no other has: compacted,
        updated, or appended by someone. Returns whether there are any. Raises ValueError naming the sample id
        and both partitions.
        """
        incoming = {id_: f.partition for f in self.pending for id_ in f.sample_ids().to_pylist()}
        previous = {id_ for record in self._previous for id_ in record.sample_ids().to_pylist()}
        wanted = pa.array([*incoming, *(previous - incoming.keys())], pa.string())
        hits = {(id_, f) for id_, f in self.snapshot.rows_of(wanted) if f not in self.removed}
        if not hits:
            return False
        replaced = {fragments.partition for fragments in self.pending}
        owners = Ownership(self.snapshot, all_records()).of_rows(hits, besides=replaced)
        for (sample_id, fragment), owner in sorted(owners.items()):
            if not owner:
                self._deleted.setdefault(fragment, set()).add(sample_id)
            elif sample_id in incoming:
                raise ValueError(_both(sample_id, owner, incoming[sample_id]))
        return bool(self._deleted)

    def operation(self, new: Sequence[Any]) -> lance.LanceOperation.Update | None:
        """The Lance operation that adds ``new`` and takes out what this replaces; None when there is nothing
        to do.
        """
        return taking_out(self.snapshot, self.removed, self._deleted, new)


def check_distinct(sets: Iterable[FragmentSet]) -> None:
    """Raises ValueError when two sets are of one partition or have one sample id."""
    partitions: set[str] = set()
    owner: dict[str, str] = {}
    for fragments in sets:
        if fragments.partition in partitions:
            raise ValueError(f"partition {fragments.partition!r} is given twice in one commit")
        partitions.add(fragments.partition)
        for sample_id in fragments.sample_ids().to_pylist():
            if sample_id in owner:
                raise ValueError(_both(sample_id, owner[sample_id], fragments.partition))
            owner[sample_id] = fragments.partition


def find_repeated(
    snapshot: Snapshot | None, records: Mapping[str, Sequence[PartitionRecord]], sets: Sequence[FragmentSet]
) -> dict[str, str]:
    """Partition -> complaint for each set with a sample id that an earlier sound set has, or a partition that
    is not replaced.
    """
    complaints: dict[str, str] = {}
    while True:  # a partition that is refused is not replaced: it keeps the sample ids that another might have been given
        sound = [fragments for fragments in sets if fragments.partition not in complaints]
        found = _repeated_once(_kept_ids(snapshot, records, sound) if snapshot is not None else {}, sound)
        if not found:
            return complaints
        complaints |= found


def _kept_ids(
    snapshot: Snapshot, records: Mapping[str, Sequence[PartitionRecord]], sets: Sequence[FragmentSet]
) -> dict[str, str]:
    """Sample id of the sets -> the partition that has it and is not replaced by them."""
    replaced = {fragments.partition for fragments in sets}
    ids = pa.array([id_ for fragments in sets for id_ in fragments.sample_ids().to_pylist()], pa.string())
    owners = Ownership(snapshot, records).of_rows(set(snapshot.rows_of(ids)), besides=replaced)
    return {sample_id: owner for (sample_id, _), owner in owners.items() if owner and owner not in replaced}


def _repeated_once(taken: dict[str, str], sets: Sequence[FragmentSet]) -> dict[str, str]:
    complaints: dict[str, str] = {}
    for fragments in sets:
        ids = fragments.sample_ids().to_pylist()
        clash = next((sample_id for sample_id in ids if sample_id in taken), None)
        if clash is None:
            taken.update(dict.fromkeys(ids, fragments.partition))
        else:
            complaints[fragments.partition] = _both(clash, taken[clash], fragments.partition)
    return complaints


@dataclass
class Doubles:
    """What came double by a commit that others overlapped: fragments and rows (fragment -> sample ids) to
    take out, and a complaint for each partition of which all goes.
    """

    fragments: set[int] = field(default_factory=set)
    rows: dict[int, set[str]] = field(default_factory=dict)
    complaints: dict[str, str] = field(default_factory=dict)


def find_doubles(
    snapshot: Snapshot,
    records: Mapping[str, Sequence[PartitionRecord]],
    sets: Sequence[FragmentSet],
    all_records: AllRecords,
) -> Doubles:
    """What to take out after a commit that others overlapped.

    Of two sets of one partition the later stays. Of two partitions with one sample id the later goes: its
    committer is the one sure to see both. When compaction has hidden which is the later, ours goes; rows that
    are nobody's go.
    """
    doubles = Doubles()
    mine: dict[str, tuple[str, int]] = {}
    own_fragments: dict[str, list[int]] = {}
    for fragments in sets:
        present = [record for record in records[fragments.partition] if snapshot.fragment_ids(record)]
        live = snapshot.live(present)
        doubles.fragments.update(id_ for record in present for id_ in snapshot.all_fragment_ids(record))
        doubles.fragments.difference_update(snapshot.fragment_ids(live) if live is not None else ())
        if live is not None and live.set_id == fragments.set_id:
            own_fragments[fragments.partition] = snapshot.fragment_ids(live)
            first = own_fragments[fragments.partition][0]
            mine.update(dict.fromkeys(fragments.sample_ids().to_pylist(), (fragments.partition, first)))
    seen = doubles.fragments.union(*own_fragments.values())
    hits = {
        (id_, fragment)
        for id_, fragment in snapshot.rows_of(pa.array(list(mine), pa.string()))
        if fragment not in seen
    }
    if not hits:
        return doubles
    ownership = Ownership(snapshot, all_records())
    for (sample_id, fragment), owner in sorted(ownership.of_rows(hits, besides=own_fragments).items()):
        partition, first = mine[sample_id]
        if not owner:
            doubles.rows.setdefault(fragment, set()).add(sample_id)
        elif fragment < first or fragment not in ownership.of_fragment:
            doubles.fragments.update(own_fragments[partition])
            doubles.complaints.setdefault(partition, _both(sample_id, owner, partition))
    return doubles


def _both(sample_id: str, first: str, second: str) -> str:
    return f"sample id {sample_id!r} of partition {second!r} is already in partition {first!r}: sample ids are unique in a table"
