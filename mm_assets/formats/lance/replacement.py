"""What one commit takes out of a table and puts in, so that the named partitions, and nothing else, are replaced."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import lance
import pyarrow as pa

from mm_assets.formats.lance.fragments import FragmentSet
from mm_assets.formats.lance.partitions import PartitionRecord
from mm_assets.formats.lance.snapshot import Snapshot, ids_predicate

AllRecords = Callable[[], Mapping[str, Sequence[PartitionRecord]]]


class Replacement:
    """The difference between one version of the table and the partitions as they shall be.

    ``pending`` are the sets that the version does not have yet, ``kept`` the records of those that it has, ``removed`` the
    fragments to take out, ``obsolete`` the records that stand for nothing once this is done. What the version has of partitions
    named in ``afresh`` counts for nothing.
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
        self._moved: list[PartitionRecord] = []  # live, but (partly) in fragments that compaction made
        self._maybe: list[PartitionRecord] = []  # perhaps live too: nothing is left that could tell
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
            if live is not None and self.snapshot.present_rows(live) < live.rows:
                self._moved.append(live)
                self._maybe += [r for r in records if r is not live and (r.version or self.snapshot.cannot_tell(r))]
        self.removed |= present
        self.obsolete += [r for r in records if r.may_be_deleted() and not (r is live and live in self.kept)]

    def resolve_rows(self, all_records: AllRecords) -> None:
        """Find rows to delete out of shared fragments, and refuse sample ids that other partitions have.

        Raises ValueError naming the sample id and both partitions.
        """
        incoming = {id_: f.partition for f in self.pending for id_ in f.sample_ids().to_pylist()}
        moved, maybe = _ids(self._moved), _ids(self._maybe)
        wanted = pa.array([*incoming, *((moved | maybe) - incoming.keys())], pa.string())
        hits = {(id_, f) for id_, f in self.snapshot.rows_of(wanted) if f not in self.removed}
        if not hits:
            return
        records = all_records()
        owners = owners_of_fragments(self.snapshot, records)
        if maybe:
            ours = {record.partition for record in self._moved}
            moved |= maybe - _ids(r for name, entries in records.items() if name not in ours for r in entries)
        for sample_id, fragment in sorted(hits):
            if sample_id in moved and fragment not in owners:
                self._deleted.setdefault(fragment, set()).add(sample_id)
            elif sample_id in incoming:
                other = owners.get(fragment) or _claimant(sample_id, self.snapshot, records, incoming[sample_id])
                raise ValueError(_both(sample_id, other, incoming[sample_id]))

    def operation(self, new: Sequence[Any]) -> lance.LanceOperation.Update | None:
        """The Lance operation that adds ``new`` and takes out what this replaces; None when there is nothing to do."""
        removed, updated = set(self.removed), []
        for id_, sample_ids in self._deleted.items():
            left = self.snapshot.fragment(id_).delete(ids_predicate(sorted(sample_ids)))
            if left is None:
                removed.add(id_)
            else:
                updated.append(left)
        if not (removed or updated or new):
            return None
        return lance.LanceOperation.Update(removed_fragment_ids=sorted(removed), updated_fragments=updated, new_fragments=list(new))


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
    """Partition -> complaint for each set with a sample id that an earlier sound set has, or a partition that is not replaced."""
    replaced = {fragments.partition for fragments in sets}
    owners = owners_of_fragments(snapshot, records) if snapshot is not None else {}
    taken: dict[str, str] = {}
    complaints: dict[str, str] = {}
    for fragments in sets:
        ids = fragments.sample_ids()
        clashes = {id_: taken[id_] for id_ in ids.to_pylist() if id_ in taken}
        if snapshot is not None and not clashes:
            for id_, fragment in snapshot.rows_of(ids):
                owner = owners.get(fragment) or _claimant(id_, snapshot, records, fragments.partition)
                if owner not in replaced:
                    clashes[id_] = owner
        if clashes:
            sample_id, other = next(iter(clashes.items()))
            complaints[fragments.partition] = _both(sample_id, other, fragments.partition)
        else:
            taken.update(dict.fromkeys(ids.to_pylist(), fragments.partition))
    return complaints


def find_doubles(
    snapshot: Snapshot,
    records: Mapping[str, Sequence[PartitionRecord]],
    sets: Sequence[FragmentSet],
    all_records: AllRecords,
) -> tuple[list[int], str]:
    """Fragments to remove after a commit that others overlapped, and a complaint when the commit must be undone.

    Of two sets of one partition the later stays. Of two partitions with one sample id the later goes: its committer is
    the one sure to see both.
    """
    doubled: set[int] = set()
    mine: dict[str, tuple[str, int]] = {}
    own_fragments: dict[str, list[int]] = {}
    for fragments in sets:
        present = [record for record in records[fragments.partition] if snapshot.fragment_ids(record)]
        live = snapshot.live(present)
        doubled.update(id_ for record in present for id_ in snapshot.all_fragment_ids(record))
        doubled.difference_update(snapshot.fragment_ids(live) if live is not None else ())
        if live is not None and live.set_id == fragments.set_id:
            own_fragments[fragments.partition] = snapshot.fragment_ids(live)
            first = own_fragments[fragments.partition][0]
            mine.update(dict.fromkeys(fragments.sample_ids().to_pylist(), (fragments.partition, first)))
    ours = {id_ for ids in own_fragments.values() for id_ in ids}
    complaint = ""
    for sample_id, fragment in snapshot.rows_of(pa.array(list(mine), pa.string())):
        partition, first = mine[sample_id]
        if fragment not in ours and fragment not in doubled and fragment < first:
            others = all_records()
            other = owners_of_fragments(snapshot, others).get(fragment, "")
            doubled.update(own_fragments[partition])
            complaint = _both(sample_id, other or _claimant(sample_id, snapshot, others, partition), partition)
            break
    return sorted(doubled), complaint


def owners_of_fragments(snapshot: Snapshot, records: Mapping[str, Sequence[PartitionRecord]]) -> dict[int, str]:
    """Fragment -> the partition whose data files it has; fragments that compaction made have none."""
    return {id_: name for name, entries in records.items() for record in entries for id_ in snapshot.all_fragment_ids(record)}


def _claimant(sample_id: str, snapshot: Snapshot, records: Mapping[str, Sequence[PartitionRecord]], but: str) -> str:
    """The partition whose compacted rows have this sample id; empty when no record says so."""
    wanted = pa.scalar(sample_id, pa.string())
    for name, entries in records.items():
        live = snapshot.live(entries) if name != but else None
        if live is not None and live.sample_ids().index(wanted).as_py() >= 0:
            return name
    return ""


def _ids(records: Iterable[PartitionRecord]) -> set[str]:
    return {id_ for record in records for id_ in record.sample_ids().to_pylist()}


def _both(sample_id: str, first: str, second: str) -> str:
    holder = f"partition {first!r}" if first else "a fragment that no partition record names"
    return f"sample id {sample_id!r} of partition {second!r} is already in {holder}: sample ids are unique in a table"
