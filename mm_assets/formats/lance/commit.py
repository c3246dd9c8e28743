"""Commit of partitions to a Lance table: what is removed and added, scalar indexes, orphan rows.

* `Replacement`: the fragments and rows to remove and to add when partitions are replaced in one commit.
* Scalar indexes are created, extended to all rows, and validated: `cover_all_rows`, `has_sound_indexes`.
* Orphan rows and values are content of a table that was not committed with any partition: `find_orphan_rows`,
  `partitions_with_values`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import lance
import pyarrow as pa

from mm_assets.formats.lance.fragments import FragmentSet
from mm_assets.formats.lance.records import PartitionRecord
from mm_assets.formats.lance.snapshot import Ownership, Snapshot, is_readable, removal_operation
from mm_assets.model.schema import MODALITIES

AllRecords = Callable[[], Mapping[str, Sequence[PartitionRecord]]]


class Replacement:
    """The difference between one version of the table and the partitions to commit.

    Args:
        sets: the partitions to commit.
        records: their records.
        afresh: partitions that are replaced even if the version has equal rows.

    ``pending`` are the sets that the version does not have yet, ``kept`` the records of those that it has,
    ``removed`` the fragments to remove, ``obsolete`` the records to delete afterwards.
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
        # Of the pending sets: one of them has rows now, perhaps in files that no record names.
        self._previous: list[PartitionRecord] = []
        self._deleted: dict[int, set[str]] = {}  # fragment -> sample ids whose rows are removed
        for fragments in sets:
            self._compare(fragments, records[fragments.partition])

    def _compare(self, fragments: FragmentSet, records: Sequence[PartitionRecord]) -> None:
        live = self.snapshot.live(records)
        present = {id_ for record in records for id_ in self.snapshot.all_fragment_ids(record)}
        is_trusted = fragments.partition not in self._afresh
        if live is not None and is_trusted and live.holds(fragments) and self.snapshot.has_rows_of(live):
            self.kept.append(live)
            present -= set(self.snapshot.fragment_ids(live))
        elif live is not None or fragments.rows:
            self.pending.append(fragments)
            self._previous += records
        self.removed |= present
        self.obsolete += [r for r in records if r.may_be_deleted() and not (r is live and live in self.kept)]

    def resolve_rows(self, all_records: AllRecords) -> bool:
        """Find the rows to delete from files that no record names.

        They have a sample id that the replaced partitions have or had and no other has: they were compacted,
        updated, or appended by someone.

        Returns:
            Whether there are any.

        Raises:
            ValueError: naming the sample id and both partitions, for an id that another partition has.
        """
        incoming = {id_: f.partition for f in self.pending for id_ in f.sample_ids().to_pylist()}
        previous = {id_ for record in self._previous for id_ in record.sample_ids().to_pylist()}
        affected_ids = pa.array([*incoming, *(previous - incoming.keys())], pa.string())
        hits = {(id_, f) for id_, f in self.snapshot.rows_of(affected_ids) if f not in self.removed}
        if not hits:
            return False
        replaced = {fragments.partition for fragments in self.pending}
        owners = Ownership(self.snapshot, all_records()).of_rows(hits, ignored=replaced)
        for (sample_id, fragment), owner in sorted(owners.items()):
            if not owner:
                self._deleted.setdefault(fragment, set()).add(sample_id)
            elif sample_id in incoming:
                raise ValueError(_repeated_id_line(sample_id, owner, incoming[sample_id]))
        return bool(self._deleted)

    def operation(self, new: Sequence[Any]) -> lance.LanceOperation.Update | None:
        """Return the Lance operation that adds ``new`` and removes what is replaced, or None."""
        return removal_operation(self.snapshot, self.removed, self._deleted, new)


def check_distinct(sets: Iterable[FragmentSet]) -> None:
    """Check that the sets have distinct partitions and sample ids.

    Raises:
        ValueError: for two sets of one partition, or with a common sample id.
    """
    partitions: set[str] = set()
    owner: dict[str, str] = {}
    for fragments in sets:
        if fragments.partition in partitions:
            raise ValueError(f"partition {fragments.partition!r} is given twice in one commit")
        partitions.add(fragments.partition)
        for sample_id in fragments.sample_ids().to_pylist():
            if sample_id in owner:
                raise ValueError(_repeated_id_line(sample_id, owner[sample_id], fragments.partition))
            owner[sample_id] = fragments.partition


def find_repeated(
    snapshot: Snapshot | None, all_records: AllRecords, sets: Sequence[FragmentSet]
) -> dict[str, str]:
    """Return partition -> complaint for each set that repeats a sample id.

    The id belongs to an earlier accepted set, or to a partition that is not replaced.
    """
    complaints: dict[str, str] = {}
    while True:  # a refused partition is not replaced, so it keeps sample ids that other sets may have
        sound = [fragments for fragments in sets if fragments.partition not in complaints]
        found = _repeated_once(_kept_ids(snapshot, all_records, sound) if snapshot is not None else {}, sound)
        if not found:
            return complaints
        complaints |= found


def _kept_ids(snapshot: Snapshot, all_records: AllRecords, sets: Sequence[FragmentSet]) -> dict[str, str]:
    """Return sample id of the sets -> the partition that has it and is not replaced by them."""
    replaced = {fragments.partition for fragments in sets}
    ids = pa.array([id_ for fragments in sets for id_ in fragments.sample_ids().to_pylist()], pa.string())
    rows = set(snapshot.rows_of(ids))
    if not rows:  # the records of all partitions are not read
        return {}
    owners = Ownership(snapshot, all_records()).of_rows(rows, ignored=replaced)
    return {sample_id: owner for (sample_id, _), owner in owners.items() if owner and owner not in replaced}


def _repeated_once(owner_of: dict[str, str], sets: Sequence[FragmentSet]) -> dict[str, str]:
    complaints: dict[str, str] = {}
    for fragments in sets:
        ids = fragments.sample_ids().to_pylist()
        clash = next((sample_id for sample_id in ids if sample_id in owner_of), None)
        if clash is None:
            owner_of.update(dict.fromkeys(ids, fragments.partition))
        else:
            complaints[fragments.partition] = _repeated_id_line(clash, owner_of[clash], fragments.partition)
    return complaints


@dataclass
class Duplicates:
    """Content that is duplicated because other commits overlapped.

    ``fragments`` and ``rows`` (fragment -> sample ids) are to be removed; ``complaints`` has a line for each
    partition that is removed as a whole.
    """

    fragments: set[int] = field(default_factory=set)
    rows: dict[int, set[str]] = field(default_factory=dict)
    complaints: dict[str, str] = field(default_factory=dict)


def find_duplicates(
    snapshot: Snapshot,
    records: Mapping[str, Sequence[PartitionRecord]],
    sets: Sequence[FragmentSet],
    all_records: AllRecords,
) -> Duplicates:
    """Return what to remove after a commit that others overlapped.

    Of two sets of one partition the later stays. Of two partitions with one sample id the later is removed:
    its committer is the one sure to see both. When compaction has hidden which is the later, the one of this
    commit is removed. Orphan rows are removed.
    """
    duplicates = Duplicates()
    own_ids: dict[str, tuple[str, int]] = {}
    own_fragments: dict[str, list[int]] = {}
    for fragments in sets:
        present = [record for record in records[fragments.partition] if snapshot.fragment_ids(record)]
        live = snapshot.live(present)
        duplicates.fragments.update(id_ for record in present for id_ in snapshot.all_fragment_ids(record))
        duplicates.fragments.difference_update(snapshot.fragment_ids(live) if live is not None else ())
        if live is not None and live.set_id == fragments.set_id:
            own_fragments[fragments.partition] = snapshot.fragment_ids(live)
            first = own_fragments[fragments.partition][0]
            own_ids.update(dict.fromkeys(fragments.sample_ids().to_pylist(), (fragments.partition, first)))
    known_fragments = duplicates.fragments.union(*own_fragments.values())
    hits = {
        (id_, fragment)
        for id_, fragment in snapshot.rows_of(pa.array(list(own_ids), pa.string()))
        if fragment not in known_fragments
    }
    if not hits:
        return duplicates
    ownership = Ownership(snapshot, all_records())
    for (sample_id, fragment), owner in sorted(ownership.of_rows(hits, ignored=own_fragments).items()):
        partition, first = own_ids[sample_id]
        if not owner:
            duplicates.rows.setdefault(fragment, set()).add(sample_id)
        elif fragment < first or fragment not in ownership.of_fragment:
            duplicates.fragments.update(own_fragments[partition])
            duplicates.complaints.setdefault(partition, _repeated_id_line(sample_id, owner, partition))
    return duplicates


def _repeated_id_line(sample_id: str, first: str, second: str) -> str:
    return (
        f"sample id {sample_id!r} of partition {second!r} is already in partition {first!r}: "
        "sample ids are unique in a table"
    )


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
    """Create the indexes again, from the rows; of a table without rows they are dropped."""
    present, has_rows = _present(dataset), bool(dataset.get_fragments())
    for column, kind in _INDEXES.items():
        name = present.get((column, kind))
        if has_rows:
            dataset.create_scalar_index(column, kind, name=name)
        elif name is not None:
            dataset.drop_index(name)


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


_BATCH_ROWS = 1 << 16


@dataclass(frozen=True)
class OrphanRows:
    """Rows of one sample in one fragment that belong to no partition.

    ``partition`` is the one that has the same sample id, or "".
    """

    sample_id: str
    fragment: int
    rows: int
    partition: str


def find_orphan_rows(
    snapshot: Snapshot, records: Mapping[str, Sequence[PartitionRecord]]
) -> list[OrphanRows]:
    """Return orphan rows: surplus rows in files that no record names, and duplicates from two commits.

    Files that no record names have surplus rows if they have more than partitions lack in their own files. A
    row with the sample id of a partition is an orphan if that partition has all of its rows in its own files.
    If it does not (after a compaction), the surplus row cannot be told from the others: `Snapshot.is_whole`
    is False then, and the partition must be committed again.
    """
    live = [record for entries in records.values() if (record := snapshot.live(entries)) is not None]
    ownership = Ownership(snapshot, records)
    duplicated = set(ownership.of_fragment) - {
        id_ for record in live for id_ in snapshot.fragment_ids(record)
    }
    unnamed = set(snapshot.fragments) - set(ownership.of_fragment)
    moved = sum(max(record.rows - snapshot.present_rows(record), 0) for record in live)
    if sum(snapshot.fragments[id_].num_rows for id_ in unnamed) == moved:
        unnamed = set()
    counts = Counter(_rows(snapshot, duplicated | unnamed))
    owners = ownership.owners({sample_id for sample_id, _ in counts})
    orphan_rows = []
    for (sample_id, fragment), rows in sorted(counts.items()):
        owner = owners.get(sample_id)
        if fragment in duplicated or owner is None or snapshot.present_rows(owner) == owner.rows:
            orphan_rows.append(
                OrphanRows(sample_id, fragment, rows, owner.partition if owner is not None else "")
            )
    return orphan_rows


def rows_by_fragment(orphan_rows: Iterable[OrphanRows]) -> dict[int, set[str]]:
    """Return fragment -> sample ids of its orphan rows."""
    found: dict[int, set[str]] = {}
    for orphan in orphan_rows:
        found.setdefault(orphan.fragment, set()).add(orphan.sample_id)
    return found


def partitions_with_values(
    snapshot: Snapshot,
    records: Mapping[str, Sequence[PartitionRecord]],
    columns: Iterable[str],
    among: Collection[str],
) -> set[str]:
    """Return those of the partitions in ``among`` that have a value in one of some columns.

    Files without the column are not read.
    """
    ownership = Ownership(snapshot, records)
    candidates = {
        id_: fragment
        for id_, fragment in snapshot.fragments.items()
        if ownership.of_fragment.get(id_, "") in {"", *among}
    }
    rows: set[tuple[str, int]] = set()
    for column in columns:
        ids = _ids_below(snapshot, column)
        relevant = [
            id_
            for id_, fragment in candidates.items()
            if any(ids & set(file.fields) for file in fragment.files)
        ]
        rows.update(_rows(snapshot, relevant, f"`{column}` IS NOT NULL"))
    return set(ownership.of_rows(rows).values()).intersection(among)


def _rows(
    snapshot: Snapshot, fragments: Collection[int], where: str | None = None
) -> Iterable[tuple[str, int]]:
    """Yield (sample id, fragment) of each row."""
    if not fragments:
        return
    scanner = snapshot.dataset.scanner(
        columns=["sample_id"],
        filter=where,
        fragments=[snapshot.fragment(id_) for id_ in sorted(fragments)],
        with_row_address=True,
        batch_size=_BATCH_ROWS,
    )
    for batch in scanner.to_batches():
        addresses = batch.column("_rowaddr").to_pylist()
        yield from zip(
            batch.column("sample_id").to_pylist(), (address >> 32 for address in addresses), strict=True
        )


def _ids_below(snapshot: Snapshot, column: str) -> set[int]:
    """Return the field ids of a column and all its children."""
    pending = [field for field in snapshot.dataset.lance_schema.fields() if field.name() == column]
    found: set[int] = set()
    while pending:
        field = pending.pop()
        found.add(field.id())
        pending.extend(field.children())
    return found
