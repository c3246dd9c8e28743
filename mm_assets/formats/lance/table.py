"""Lance table of many partitions: commits, repair, pinned versions and maintenance.

* `LanceTable`: any number of partitions is replaced in one commit. It is repaired before, as damage in
  partitions about to be replaced must not prevent that.
* `PinnedTable`: one version, held while others commit: its partitions, their files, and tags.
* `maintain`: compaction, indexes, old versions.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from typing import Any, TypeVar

import lance
import pyarrow as pa

from mm_assets.formats.lance import Location, each, from_storage_schema, naming_table, opened
from mm_assets.formats.lance.commit import (
    OrphanRows,
    Replacement,
    check_distinct,
    cover_all_rows,
    find_duplicates,
    find_orphan_rows,
    find_repeated,
    has_sound_indexes,
    partitions_with_values,
    rebuild,
    rows_by_fragment,
)
from mm_assets.formats.lance.fragments import FragmentSet, adopt, differs, evolve, target_schema
from mm_assets.formats.lance.records import LancePartitionStats, PartitionRecord, PartitionRecords
from mm_assets.formats.lance.snapshot import (
    SETS,
    Snapshot,
    StaleSnapshot,
    removal_operation,
    retry_on_conflict,
    unreadable_fragments,
)

Result = TypeVar("Result")


class LanceTable:
    """A Lance table at a folder or URL, which need not exist yet.

    Workers make `FragmentSet`s with `write_fragments`; one process commits them. Committers in other
    processes may work on the same table: commits of different partitions all succeed. Of two commits of *one*
    partition at the same time the later one stays. Between its commit and its check for duplicates, a few
    milliseconds, readers can see both, and a crash just then leaves both until the partition is committed
    again. Run one commit of a partition at a time to avoid that.
    """

    def __init__(self, uri: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None) -> None:
        self._location = Location(uri, storage_options)
        self._records = PartitionRecords(self._location)

    @property
    def uri(self) -> str:
        return self._location.uri

    def exists(self) -> bool:
        """Return whether anything was committed. Prints nothing, unlike opening a missing table."""
        return self._location.has_table()

    def dataset(self) -> lance.LanceDataset:
        """Return the newest version.

        Raises:
            FileNotFoundError: when there is none.
            OSError: when its manifest is damaged.
        """
        if not self.exists():
            raise FileNotFoundError(f"no Lance table at {self.uri}")
        return opened(self.uri, storage_options=self._location.storage_options or None)

    def schema(self) -> pa.Schema:
        """Return the columns in their original types (`from_storage`).

        `dataset().schema` has them in storage types.
        """
        return from_storage_schema(self.dataset().schema)

    def commit(
        self,
        fragment_sets: Sequence[FragmentSet],
        *,
        properties: Mapping[str, str] | None = None,
        afresh: Collection[str] = (),
    ) -> int:
        """Replace exactly these partitions, in one commit.

        A set without rows removes its partition. Sets that the table has already (same set, or same digest,
        row count and schema) are left alone: when all are, no version is made. If the sets have columns, or
        wider types, that the table lacks, its schema is evolved first, in another version. After any error,
        or a crash, the same call may be repeated.

        Args:
            properties: kept in the Lance transaction.
            afresh: partitions that are replaced although the table has the same: its rows are known to be
                damaged.

        Returns:
            The table's version that has the partitions.

        Raises:
            ValueError: for a sample id that two partitions would have, and for a partition named twice.
            SchemaNotPlanned: for a set that does not fit the table's schema.
            SchemaMismatch: for a value that cannot be converted exactly.
            FileNotFoundError: when a set's data files are missing.
            CommitConflictError: after about half a minute of conflicts.
        """
        check_distinct(fragment_sets)
        attempt = uuid.uuid4().hex
        if not fragment_sets:
            return int(self.dataset().version)
        self._records.sweep()
        return retry_on_conflict(lambda: self._commit_once(fragment_sets, properties or {}, attempt, afresh))

    def repeated_ids(self, fragment_sets: Sequence[FragmentSet]) -> dict[str, str]:
        """Return partition -> complaint, for each set that repeats a sample id.

        The id belongs to an earlier set or to a partition not in the list. `commit` refuses all sets when
        there is one; without these the others can be committed.
        """
        snapshot = Snapshot(self.dataset()) if self.exists() else None
        return find_repeated(snapshot, cache(self._records.all), fragment_sets)

    def discard_unused(self, fragment_sets: Sequence[FragmentSet]) -> None:
        """Delete the data files of sets that the table does not use.

        It had their rows already, or refused them. Only for the caller's own sets that will not be committed
        any more.
        """
        names = [name for fragments in fragment_sets for name in fragments.data_files()]
        unused = Snapshot(self.dataset()).unused(names) if self.exists() else names
        each(lambda name: self._location.delete(f"data/{name}"), unused)

    def partitions(self, among: Collection[str] | None = None) -> dict[str, LancePartitionStats]:
        """Return every partition in the newest version, or those in ``among``, by name, sorted.

        Reads one small record per partition.
        """
        if not self.exists():
            return {}
        read = self._records.all if among is None else partial(self._records.of, among)
        snapshot, by_name = retry_on_conflict(lambda: self._consistent(read))
        found = (snapshot.live(records) for _, records in sorted(by_name.items()))
        return snapshot.stats(live for live in found if live is not None)

    def recorded(self, partitions: Iterable[str]) -> set[str]:
        """Return those of some partitions that have a record, by file names alone."""
        return self._records.named(partitions)

    def orphan_rows(self) -> list[OrphanRows]:
        """Return the rows of the newest version that were not committed with a partition.

        Row counts show whether there are any; only then ids are read.
        """
        if not self.exists():
            return []
        return retry_on_conflict(lambda: find_orphan_rows(*self._consistent(self._records.all)))

    def remove_orphan_rows(self) -> int:
        """Remove orphan rows in a separate commit, and return their number.

        Older versions keep them.
        """

        def once() -> int:
            snapshot, records = self._consistent(self._records.all)
            orphan_rows = find_orphan_rows(snapshot, records)
            operation = removal_operation(snapshot, (), rows_by_fragment(orphan_rows))
            if operation is not None:
                self._apply(snapshot.dataset, operation, {})
            return sum(orphan.rows for orphan in orphan_rows)

        return retry_on_conflict(once) if self.exists() else 0

    def partitions_with_values(self, columns: Collection[str], among: Collection[str]) -> set[str]:
        """Return those partitions in ``among`` that have a value in one of some columns."""
        return retry_on_conflict(
            lambda: partitions_with_values(*self._consistent(self._records.all), columns, among)
        )

    def drop_damaged_records(self, partitions: Collection[str]) -> None:
        """Delete unreadable records of these partitions, which are about to be written again."""
        self._records.drop_damaged(partitions)

    def forget_earlier(self, partitions: Collection[str]) -> None:
        """Delete the records of earlier rows of these partitions, with their sample ids.

        Nobody else may be about to commit them: records of commits that were killed go, too.
        """

        def attempt() -> None:
            snapshot, by_name = self._consistent(lambda: self._records.of(partitions))
            for records in by_name.values():
                live = snapshot.live(records)
                self._records.delete(record for record in records if record is not live)

        retry_on_conflict(attempt)
        self._records.sweep()

    def take_out_unreadable(self, partitions: Collection[str]) -> None:
        """Remove unreadable fragments of partitions that are about to be written again, in one commit."""

        def attempt() -> None:
            snapshot, records = self._consistent(lambda: self._records.of(partitions))
            operation = removal_operation(snapshot, unreadable_fragments(self.uri, snapshot, records), {})
            if operation is not None:
                self._apply(snapshot.dataset, operation, {})

        retry_on_conflict(attempt)

    def mend_indexes(self, partitions: Collection[str]) -> None:
        """Rebuild the indexes if they do not find all rows of these partitions."""
        snapshot, records = retry_on_conflict(lambda: self._consistent(lambda: self._records.of(partitions)))
        if not has_sound_indexes(self.uri, snapshot, records):
            retry_on_conflict(lambda: rebuild(self.dataset()))

    def ensure_indexes(self) -> int:
        """Make the scalar indexes (sample_id BTREE, modality BITMAP) cover every row.

        No version is made when they already do, or when the table has no rows.

        Returns:
            The table's version.
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
            self._record_commit(replacement, int(dataset.version), attempt)
            return int(dataset.version)
        self._check_files(replacement.pending)
        self._resolve_rows(replacement)
        target = target_schema(dataset.schema, replacement.pending)
        # Intents come before anything that could crash: the next committer then knows whatever was committed.
        self._records.put(
            PartitionRecord.intent(fragments, int(dataset.version), attempt)
            for fragments in replacement.pending
        )
        if differs(dataset.schema, target):
            dataset = evolve(dataset, target)
            replacement = Replacement(Snapshot(dataset), records, sets, afresh)
            self._resolve_rows(replacement)
        new = [
            adopt(text, fragments.arrow_schema(), dataset)
            for fragments in replacement.pending
            for text in fragments.fragments
        ]
        read_version = int(dataset.version)
        operation = replacement.operation(new)
        if operation is not None:
            committed = self._apply(dataset, operation, {**properties, SETS: _describe(replacement.pending)})
            if committed.version != read_version + 1:
                self._remove_duplicates(replacement.pending, attempt)
            dataset = committed
        self._record_commit(replacement, int(dataset.version), attempt)
        return int(dataset.version)

    def _consistent(self, read: Callable[[], Result]) -> tuple[Snapshot, Result]:
        """Return the newest version, with records that are complete for it.

        Records of fragments are put before the version that adds them, and pruned after the one that removes
        them. Read while a version is the newest, they name all its fragments.

        Raises:
            StaleSnapshot: when another version was committed meanwhile.
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
            operation = lance.LanceOperation.Overwrite(target_schema(None, sets), [])
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
        """Refuse sets with missing data files, as their version could not be read.

        A cleanup with ``delete_unverified`` deletes such files.
        """
        files = [(fragments.partition, name) for fragments in sets for name in fragments.data_files()]
        for (partition, name), is_present in zip(
            files, each(lambda f: self._location.exists(f"data/{f[1]}"), files), strict=True
        ):
            if not is_present:
                raise FileNotFoundError(
                    f"partition {partition!r}: data file {name} is gone from {self.uri}: write it again"
                )

    def _remove_duplicates(self, sets: Sequence[FragmentSet], attempt: str) -> None:
        """Remove what is duplicated because others committed meanwhile.

        Lance accepts such commits when no fragment is changed twice.
        """

        def once() -> None:
            snapshot, records = self._consistent(lambda: self._records.of([f.partition for f in sets]))
            duplicates = find_duplicates(snapshot, records, sets, self._records.all)
            operation = removal_operation(snapshot, duplicates.fragments, duplicates.rows)
            if operation is not None:
                self._check_newest(snapshot)
                self._apply(snapshot.dataset, operation, {})
            if duplicates.complaints:
                # They were committed and removed again: no record may say that they are committed.
                self._records.delete(
                    r for name in duplicates.complaints for r in records[name] if r.attempt == attempt
                )
                raise ValueError("; ".join(duplicates.complaints.values()))

        retry_on_conflict(once)

    def _record_commit(self, replacement: Replacement, version: int, attempt: str) -> None:
        """Record what was committed, and delete records that are obsolete."""
        landed = [
            PartitionRecord.intent(f, version, attempt).committed(version, attempt)
            for f in replacement.pending
        ]
        # A crashed commit left these as intents. The intent stays, as its writer could be alive; this is
        # another record.
        confirmed = [
            record.committed(replacement.snapshot.committed_version(record) or version, attempt)
            for record in replacement.kept
            if record.version is None
        ]
        self._records.put(record for record in [*landed, *confirmed] if record.rows)
        removals = [record for record in landed if not record.rows]
        self._records.delete([*replacement.obsolete, *removals])
        self._records.index()


def _describe(sets: Iterable[FragmentSet]) -> str:
    return json.dumps({s.partition: {"set": s.set_id, "rows": s.rows, "digest": s.digest} for s in sets})


DATA = "data"


@dataclass(frozen=True)
class PinnedPartition:
    """A partition of the version, and its data files: paths below the table."""

    stats: LancePartitionStats
    files: tuple[str, ...]


class PinnedTable:
    """The newest version of a table at the time of the call.

    Raises:
        FileNotFoundError: there is no table.
        OSError: its manifest is damaged.
    """

    def __init__(self, uri: str, storage_options: Mapping[str, str] | None = None) -> None:
        self._location = Location(uri, storage_options)
        self._snapshot = Snapshot(LanceTable(uri, storage_options).dataset())
        self._records = PartitionRecords(self._location)

    @property
    def version(self) -> int:
        """The number of the version."""
        return self._snapshot.version

    def partitions(self, names: Collection[str]) -> dict[str, PinnedPartition]:
        """Return those of some partitions that have rows in the version.

        Records are read for these partitions alone. Files that hold rows of several partitions, after a
        compaction, are of none of them.
        """
        found = {}
        lives = (self._snapshot.live(records) for records in self._records.of(names).values())
        for name, stats in self._snapshot.stats(live for live in lives if live is not None).items():
            files = [
                f"{DATA}/{file.path}"
                for id_ in stats.fragment_ids
                for file in self._snapshot.fragments[id_].files
            ]
            found[name] = PinnedPartition(stats, tuple(files))
        return found

    def data_files(self) -> list[str]:
        """Return the paths of all data files of the version, below the table."""
        fragments = self._snapshot.fragments.values()
        return sorted({f"{DATA}/{file.path}" for fragment in fragments for file in fragment.files})

    def tags(self) -> dict[str, int]:
        """Return the version of each tag of the table."""
        with naming_table(self._location.uri):
            return {name: int(tag["version"]) for name, tag in self._snapshot.dataset.tags.list().items()}

    def tag(self, name: str) -> None:
        """Give the version a tag, or move the tag of this name to it. Clean-up keeps tagged versions."""
        tags = self._snapshot.dataset.tags
        with naming_table(self._location.uri):
            if name in self.tags():
                tags.update(name, self.version)
            else:
                tags.create(name, self.version)

    def untag(self, name: str) -> None:
        """Remove a tag, if there is one of this name."""
        with naming_table(self._location.uri):
            if name in self.tags():
                self._snapshot.dataset.tags.delete(name)


@dataclass(frozen=True)
class MaintenanceReport:
    """What maintenance has done.

    Args:
        fragments_removed: number of fragments that were merged into others.
        versions_removed: number of old versions that were removed.
        bytes_removed: bytes of data that no version needs any more.
    """

    fragments_removed: int = 0
    versions_removed: int = 0
    bytes_removed: int = 0


def maintain(
    uri: str | os.PathLike[str],
    keep: timedelta = timedelta(days=7),
    storage_options: Mapping[str, str] | None = None,
) -> MaintenanceReport:
    """Merge small fragments, bring the indexes up to date, and remove old versions.

    Partitions stay replaceable: whose rows are in a merged fragment is known by their sample ids. Tagged
    versions stay, and so does every version younger than ``keep``: a reader may be at one.

    Raises:
        OSError: also where another process has committed in between too often; the table is whole then.
    """
    table = LanceTable(uri, storage_options)
    if not table.exists():
        return MaintenanceReport()
    dataset = table.dataset()
    merged = dataset.optimize.compact_files()
    cover_all_rows(table.dataset())
    removed = table.dataset().cleanup_old_versions(older_than=keep, error_if_tagged_old_versions=False)
    return MaintenanceReport(
        max(0, merged.fragments_removed - merged.fragments_added), removed.old_versions, removed.bytes_removed
    )


def purge(
    uri: str | os.PathLike[str],
    partitions: Collection[str],
    storage_options: Mapping[str, str] | None = None,
) -> MaintenanceReport:
    """Remove whatever the newest version has not: deleted rows, entries of indexes, and all older versions.

    Tagged versions stay. A reader that is at another version loses it, and a writer that has not committed
    yet its files. May be repeated after a crash.

    Args:
        partitions: those whose earlier rows shall be nowhere: their other records go.

    Raises:
        OSError: also where another process has committed in between too often; the table is whole then.
    """
    table = LanceTable(uri, storage_options)
    if not table.exists():
        return MaintenanceReport()
    table.forget_earlier(partitions)
    merged = 0
    if any(fragment.num_deletions for fragment in table.dataset().get_fragments()):
        done = table.dataset().optimize.compact_files(materialize_deletions_threshold=0.0)
        merged = max(0, done.fragments_removed - done.fragments_added)
    retry_on_conflict(lambda: rebuild(table.dataset()))
    removed = table.dataset().cleanup_old_versions(
        older_than=timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False
    )
    return MaintenanceReport(merged, removed.old_versions, removed.bytes_removed)
