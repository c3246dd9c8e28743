"""`LanceTable`: one Lance table of many partitions, of which any number is replaced in one commit."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import lance
import pyarrow as pa

from mm_assets.formats.lance import evolution
from mm_assets.formats.lance.damage import opened
from mm_assets.formats.lance.fragments import FragmentSet
from mm_assets.formats.lance.indexes import cover_all_rows
from mm_assets.formats.lance.location import Location, each
from mm_assets.formats.lance.orphan_rows import (
    OrphanRows,
    find_orphan_rows,
    partitions_with_values,
    rows_by_fragment,
)
from mm_assets.formats.lance.ownership import taking_out
from mm_assets.formats.lance.partitions import LancePartitionStats, PartitionRecord, PartitionRecords
from mm_assets.formats.lance.replacement import Replacement, check_distinct, find_doubles, find_repeated
from mm_assets.formats.lance.snapshot import SETS, Snapshot, StaleSnapshot, retry_on_conflict
from mm_assets.formats.lance.storage_types import from_storage_schema

Result = TypeVar("Result")


class LanceTable:
    """A Lance table at a folder or URL, which need not exist yet.

    Workers make `FragmentSet`s with `write_fragments`; one process commits them. Committers in other
    processes may work on the same table: commits of different partitions all land. Two commits of *one*
    partition at the same time leave the later one; between its commit and its look-again, a few milliseconds,
    readers can see both, and a crash just then leaves both until the partition is committed again. Run one
    commit of a partition at a time to close that window.
    """

    def __init__(self, uri: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None) -> None:
        self._location = Location(uri, storage_options)
        self._records = PartitionRecords(self._location)

    @property
    def uri(self) -> str:
        return self._location.uri

    def exists(self) -> bool:
        """Has anything been committed? Prints nothing, unlike opening a missing table."""
        return self._location.has_table()

    def dataset(self) -> lance.LanceDataset:
        """The newest version.

        Raises FileNotFoundError when there is none, OSError when its manifest is damaged.
        """
        if not self.exists():
            raise FileNotFoundError(f"no Lance table at {self.uri}")
        return opened(self.uri, storage_options=self._location.storage_options or None)

    def schema(self) -> pa.Schema:
        """Columns in their original types (`storage_types`), which `dataset().schema` has in storage types."""
        return from_storage_schema(self.dataset().schema)

    def commit(
        self,
        fragment_sets: Sequence[FragmentSet],
        *,
        properties: Mapping[str, str] | None = None,
        afresh: Collection[str] = (),
    ) -> int:
        """Replace exactly these partitions, in one commit, and return the table's version that has them.

        A set without rows removes its partition. Sets that the table has already (same set, or same digest,
        row count and schema) are left alone: when all are, no version is made. If the sets have columns, or
        wider types, that the table lacks, its schema is evolved first, in one version more. ``properties``
        are kept in the Lance transaction. Partitions named in ``afresh`` are replaced although the table has
        the same: its rows are known to be damaged.

        Raises ValueError for a sample id that two partitions would have and for a partition named twice,
        `SchemaNotPlanned`, `SchemaMismatch`, FileNotFoundError when a set's data files are gone,
        ``CommitConflictError`` after about half a minute of conflicts. After any error, or a crash, the same
        call may be repeated.
        """
        check_distinct(fragment_sets)
        attempt = uuid.uuid4().hex
        if not fragment_sets:
            return int(self.dataset().version)
        self._records.sweep()
        return retry_on_conflict(lambda: self._commit_once(fragment_sets, properties or {}, attempt, afresh))

    def repeated_ids(self, fragment_sets: Sequence[FragmentSet]) -> dict[str, str]:
        """Partition -> complaint, for each set that repeats a sample id of an earlier set or of a partition
        not in the list.

        `commit` refuses all sets when one is so; without these the others land.
        """
        snapshot = Snapshot(self.dataset()) if self.exists() else None
        return find_repeated(snapshot, self._records.all() if snapshot is not None else {}, fragment_sets)

    def discard_unused(self, fragment_sets: Sequence[FragmentSet]) -> None:
        """Delete the data files of sets that the table does not use: it had their rows already, or refused
        them.

        Only for sets of the caller's own that nobody will commit any more.
        """
        used = (
            {name for f in self.dataset().get_fragments() for name in (file.path for file in f.data_files())}
            if self.exists()
            else set()
        )
        unused = [name for fragments in fragment_sets for name in fragments.data_files() if name not in used]
        each(lambda name: self._location.delete(f"data/{name}"), unused)

    def partitions(self) -> dict[str, LancePartitionStats]:
        """Every partition in the newest version, by name, sorted. Reads one small record a partition."""
        if not self.exists():
            return {}
        snapshot, by_name = retry_on_conflict(lambda: self._consistent(self._records.all))
        found = {}
        for name, records in sorted(by_name.items()):
            live = snapshot.live(records)
            if live is not None:
                found[name] = snapshot.stats(live)
        return found

    def recorded(self, partitions: Iterable[str]) -> set[str]:
        """Those of some partitions that have a record, told by its name."""
        return self._records.named(partitions)

    def orphan_rows(self) -> list[OrphanRows]:
        """Rows that are in the newest version, but not by a commit of a partition.

        Counts tell that there are none; else ids are read.
        """
        if not self.exists():
            return []
        return retry_on_conflict(lambda: find_orphan_rows(*self._consistent(self._records.all)))

    def remove_orphan_rows(self) -> int:
        """Take such rows out, in a commit of its own, and return how many they were; older versions keep
        them.
        """

        def once() -> int:
            snapshot, records = self._consistent(self._records.all)
            orphan_rows = find_orphan_rows(snapshot, records)
            operation = taking_out(snapshot, (), rows_by_fragment(orphan_rows))
            if operation is not None:
                self._apply(snapshot.dataset, operation, {})
            return sum(stray.rows for stray in orphan_rows)

        return retry_on_conflict(once) if self.exists() else 0

    def partitions_with_values(self, columns: Collection[str], among: Collection[str]) -> set[str]:
        """Those of some partitions that have, in the newest version, a value in one of some columns."""
        return retry_on_conflict(
            lambda: partitions_with_values(*self._consistent(self._records.all), columns, among)
        )

    def ensure_indexes(self) -> int:
        """Make the scalar indexes (sample_id BTREE, modality BITMAP) cover every row; returns the version.

        Makes no version when they already do, or when the table has no rows.
        """
        return retry_on_conflict(lambda: cover_all_rows(self.dataset()))

    def _commit_once(
        self,
        sets: Sequence[FragmentSet],
        properties: Mapping[str, str],
        attempt: str,
        afresh: Collection[str],
    ) -> int:
        self._create(sets)
        snapshot, records = self._consistent(
            lambda: self._records.of([fragments.partition for fragments in sets])
        )
        dataset = snapshot.dataset
        replacement = Replacement(snapshot, records, sets, afresh)
        if not replacement.pending and not replacement.removed:
            self._record_landed(replacement, int(dataset.version), attempt)
            return int(dataset.version)
        self._check_files(replacement.pending)
        self._resolve_rows(replacement)
        target = evolution.target_schema(dataset.schema, replacement.pending)
        # Intents come before anything that could crash: whatever lands is then known to the next committer.
        self._records.put(
            PartitionRecord.intent(fragments, int(dataset.version), attempt)
            for fragments in replacement.pending
        )
        if evolution.differs(dataset.schema, target):
            dataset = evolution.evolve(dataset, target)
            replacement = Replacement(Snapshot(dataset), records, sets, afresh)
            self._resolve_rows(replacement)
        new = [
            evolution.adopt(text, fragments.arrow_schema(), dataset)
            for fragments in replacement.pending
            for text in fragments.fragments
        ]
        read_version = int(dataset.version)
        operation = replacement.operation(new)
        if operation is not None:
            committed = self._apply(dataset, operation, {**properties, SETS: _describe(replacement.pending)})
            if committed.version != read_version + 1:
                self._look_again(replacement.pending, attempt)
            dataset = committed
        self._record_landed(replacement, int(dataset.version), attempt)
        return int(dataset.version)

    def _consistent(self, read: Callable[[], Result]) -> tuple[Snapshot, Result]:
        """The newest version, with records that are complete for it. Raises `StaleSnapshot`.

        Records of fragments are put before the version that adds them and pruned after the one that takes
        them out: read while a version is the newest, they name all its fragments.
        """
        snapshot = Snapshot(self.dataset())
        records = read()
        self._check_newest(snapshot)
        return snapshot, records

    def _check_newest(self, snapshot: Snapshot) -> None:
        if snapshot.dataset.latest_version != snapshot.version:
            raise StaleSnapshot("other commits land faster than the table's records can be read")

    def _resolve_rows(self, replacement: Replacement) -> None:
        has_rows = True
        try:
            has_rows = replacement.resolve_rows(self._records.all)
        finally:
            if has_rows:  # else what it found, a complaint too, may come of a record that was just pruned
                self._check_newest(replacement.snapshot)

    def _create(self, sets: Sequence[FragmentSet]) -> None:
        if not self.exists():
            operation = lance.LanceOperation.Overwrite(evolution.target_schema(None, sets), [])
            try:
                # No write_dataset: of two that create at once, one erases the other's rows without an error.
                # With no retries the loser fails (in two wordings), and opens the winner's table.
                lance.LanceDataset.commit(
                    self.uri, operation, max_retries=0, storage_options=self._location.storage_options or None
                )
            except OSError:
                if not self.exists():
                    raise

    def _apply(
        self, dataset: lance.LanceDataset, operation: Any, properties: Mapping[str, str]
    ) -> lance.LanceDataset:
        transaction = lance.Transaction(dataset.version, operation, transaction_properties=dict(properties))
        return lance.LanceDataset.commit(dataset, transaction)

    def _check_files(self, sets: Iterable[FragmentSet]) -> None:
        """A version that names missing files could not be read; a cleanup with ``delete_unverified`` takes
        such files.
        """
        files = [(fragments.partition, name) for fragments in sets for name in fragments.data_files()]
        for (partition, name), there in zip(
            files, each(lambda f: self._location.exists(f"data/{f[1]}"), files), strict=True
        ):
            if not there:
                raise FileNotFoundError(
                    f"partition {partition!r}: data file {name} is gone from {self.uri}: write it again"
                )

    def _look_again(self, sets: Sequence[FragmentSet], attempt: str) -> None:
        """Others committed meanwhile, which Lance lets pass when no fragment is touched twice: mend what came
        double.
        """

        def once() -> None:
            snapshot, records = self._consistent(lambda: self._records.of([f.partition for f in sets]))
            doubles = find_doubles(snapshot, records, sets, self._records.all)
            operation = taking_out(snapshot, doubles.fragments, doubles.rows)
            if operation is not None:
                self._check_newest(snapshot)
                self._apply(snapshot.dataset, operation, {})
            if doubles.complaints:
                # Now they have landed and gone again: no record may say that they landed.
                self._records.delete(
                    r for name in doubles.complaints for r in records[name] if r.attempt == attempt
                )
                raise ValueError("; ".join(doubles.complaints.values()))

        retry_on_conflict(once)

    def _record_landed(self, replacement: Replacement, version: int, attempt: str) -> None:
        """Say in the records what landed, and drop those that stand for nothing any more."""
        landed = [
            PartitionRecord.intent(f, version, attempt).committed(version, attempt)
            for f in replacement.pending
        ]
        # A crashed commit left these as intents. The intent stays, its writer could be alive; this is a
        # record of our own.
        confirmed = [
            record.committed(replacement.snapshot.landed_version(record) or version, attempt)
            for record in replacement.kept
            if record.version is None
        ]
        self._records.put(record for record in [*landed, *confirmed] if record.rows)
        removals = [record for record in landed if not record.rows]
        self._records.delete([*replacement.obsolete, *removals])


def _describe(sets: Iterable[FragmentSet]) -> str:
    return json.dumps({s.partition: {"set": s.set_id, "rows": s.rows, "digest": s.digest} for s in sets})
