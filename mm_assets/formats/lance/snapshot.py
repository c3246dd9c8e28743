"""Snapshot of a Lance table: the fragments and the record of each partition in one version.

* `retry_on_conflict`: work on a version is repeated when another committer came first.
* `Ownership`: which partition each row belongs to. `removal_operation` is the Lance operation that removes
  rows.
* `unreadable_fragments`: data that cannot be read.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import lance
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from lance.commit import CommitConflictError

from mm_assets.formats.lance import RAISED, naming_table, until_answered, with_original_names
from mm_assets.formats.lance.records import LancePartitionStats, PartitionRecord
from mm_assets.model.errors import MmAssetsError
from mm_assets.storage.errors import StoreError

Result = TypeVar("Result")

SETS = "mm_assets:partitions"  # transaction property: JSON {partition: {"set", "rows", "digest"}}
_IDS_PER_QUERY = 20_000  # 30-60 ms each with a BTREE, and a predicate of 1-2 MB
# A conflict means that another commit landed; with 0.5 s between the last ones this is half a minute.
_ATTEMPTS = 60
_LONGEST_WAIT = 0.5  # seconds
_CONFLICT = "Retryable commit conflict"


class Snapshot:
    """The fragments of one dataset version, by data file and by sample id."""

    def __init__(self, dataset: lance.LanceDataset) -> None:
        self.dataset = dataset
        listed = _fragments_of(dataset)
        self.fragments, self._by_file = listed.by_id, listed.by_file
        self._sets_by_version: dict[int, frozenset[str]] = {}
        self._kept: frozenset[int] | None = None

    @property
    def version(self) -> int:
        return int(self.dataset.version)

    def unused(self, data_files: Iterable[str]) -> list[str]:
        """Return those of some data files that no fragment has."""
        return [path for path in data_files if path not in self._by_file]

    def fragment_ids(self, record: PartitionRecord) -> list[int]:
        """Return the current fragments of the record's data files, ascending.

        Of several with one file (a set that two processes committed at once) it is the last.
        """
        return sorted({self._by_file[path][-1] for path in record.data_files if path in self._by_file})

    def all_fragment_ids(self, record: PartitionRecord) -> set[int]:
        """Return every fragment that holds a data file of the record."""
        return {id_ for path in record.data_files for id_ in self._by_file.get(path, ())}

    def present_rows(self, record: PartitionRecord) -> int:
        """Return the number of rows in the record's own fragments, without deleted ones."""
        return sum(self.fragments[id_].num_rows for id_ in self.fragment_ids(record))

    def is_whole(self, record: PartitionRecord) -> bool:
        """Return whether all rows of the (live) record are in this version.

        They may be in its own fragments or, after compaction, in others.
        """
        if self.present_rows(record) == record.rows:
            return True
        return sum(1 for _ in self.rows_of(record.sample_ids())) == record.rows

    def stats(self, lives: Iterable[PartitionRecord]) -> dict[str, LancePartitionStats]:
        """Return the stats of partitions, by name.

        Rows that are not in fragments of their own, after a compaction, are counted for many partitions in
        one query.

        Args:
            lives: the live record of each.
        """
        records = list(lives)
        # With a part of the fragments, a reader that follows them would lose the other rows.
        complete = {record.partition for record in records if self.present_rows(record) == record.rows}
        whole = complete | self._whole([record for record in records if record.partition not in complete])
        return {
            live.partition: LancePartitionStats(
                partition=live.partition,
                rows=live.rows,
                samples=live.samples,
                nbytes=live.nbytes,
                digest=live.digest,
                set_id=live.set_id,
                version=live.version,
                fragment_ids=tuple(self.fragment_ids(live)) if live.partition in complete else (),
                is_whole=live.partition in whole,
            )
            for live in records
        }

    def _whole(self, records: Sequence[PartitionRecord]) -> set[str]:
        """Return the partitions all of whose rows are here, in whichever fragments."""
        found: set[str] = set()
        waiting: list[tuple[PartitionRecord, pa.Array]] = []
        for number, record in enumerate(records, 1):
            waiting.append((record, record.sample_ids()))
            if number < len(records) and sum(len(ids) for _, ids in waiting) < _IDS_PER_QUERY:
                continue
            every = pa.chunked_array([ids for _, ids in waiting], pa.string()).combine_chunks()
            rows = Counter(sample_id for sample_id, _ in self.rows_of(every))
            found.update(
                record.partition
                for record, ids in waiting
                if sum(rows[sample_id] for sample_id in ids.to_pylist()) == record.rows
            )
            waiting = []
        return found

    def fragment(self, id_: int) -> lance.LanceFragment:
        fragment = self.dataset.get_fragment(id_)
        if fragment is None:
            raise KeyError(f"version {self.dataset.version} has no fragment {id_}")
        return fragment

    def live(self, records: Sequence[PartitionRecord]) -> PartitionRecord | None:
        """Return the record of one partition that describes its current rows; None when it has no rows.

        Of several records with fragments here (after a crash or race between a commit and its check for
        duplicates) it is the last commit: fragment ids only grow. With no fragments here, rows were
        compacted, or removed: the record of the highest committed version decides.
        """
        present = [record for record in records if self.fragment_ids(record)]
        if present:
            return max(
                present, key=lambda record: (self.fragment_ids(record)[-1], record.version is not None)
            )
        is_unsure = False
        for _, record in sorted(self._by_commit_version(records), key=lambda pair: pair[0], reverse=True):
            if record.version is None and self.committed_version(record) is None:
                # The versions that would tell were cleaned up. Sample ids are unique: if all its rows are
                # here, it was committed.
                if record.rows and self.is_whole(record):
                    return record
                is_unsure = True
                continue
            is_trusted = record.version is not None and not is_unsure
            return record if record.rows and (is_trusted or self.is_whole(record)) else None
        return None

    def _by_commit_version(self, records: Sequence[PartitionRecord]) -> Iterator[tuple[int, PartitionRecord]]:
        """Yield the records with the version that each was committed in, or may have been.

        Intents that were surely not committed are left out.
        """
        for record in records:
            landed = self.committed_version(record)
            if landed is not None:
                yield landed, record
            elif self.may_be_committed(record):
                yield record.read_version + 1, record

    def has_rows_of(self, record: PartitionRecord) -> bool:
        """Return whether exactly the rows of the (live) record are here.

        False also when only their sample ids are known to be here.
        """
        known = bool(self.fragment_ids(record)) or self.committed_version(record) is not None
        return known and self.is_whole(record)

    def committed_version(self, record: PartitionRecord) -> int | None:
        """Return the version that committed a record.

        None when it was never committed, or when the versions that knew were cleaned up.
        """
        if record.version is not None:
            return record.version
        since = range(record.read_version + 1, self.dataset.version + 1)
        kept = self._kept_versions()
        return next((v for v in since if v in kept and record.set_id in self._sets_of(v)), None)

    def may_be_committed(self, record: PartitionRecord) -> bool:
        """Return whether a version that was cleaned up may have committed this intent."""
        since = range(record.read_version + 1, self.dataset.version + 1)
        return record.version is None and not self._kept_versions().issuperset(since)

    def _kept_versions(self) -> frozenset[int]:
        if self._kept is None:
            self._kept = frozenset(entry["version"] for entry in self.dataset.versions())
        return self._kept

    def rows_of(self, sample_ids: pa.Array) -> Iterator[tuple[str, int]]:
        """Yield (sample id, fragment id) of each row with one of these sample ids."""
        if not self.fragments:
            return
        for start in range(0, len(sample_ids), _IDS_PER_QUERY):
            found = self.dataset.scanner(
                columns=["sample_id"],
                filter=ids_predicate(sample_ids.slice(start, _IDS_PER_QUERY).to_pylist()),
                with_row_address=True,
            ).to_table()
            addresses = found.column("_rowaddr").to_pylist()
            for sample_id, address in zip(found.column("sample_id").to_pylist(), addresses, strict=True):
                yield sample_id, address >> 32

    def _sets_of(self, version: int) -> frozenset[str]:
        if version not in self._sets_by_version:
            self._sets_by_version[version] = frozenset(
                entry["set"] for entry in json.loads(self._properties(version).get(SETS, "{}")).values()
            )
        return self._sets_by_version[version]

    def _properties(self, version: int) -> Mapping[str, str]:
        try:
            transaction = self.dataset.read_transaction(version)
        except TypeError:
            # pylance 14 cannot build its own RewrittenIndex object (a compaction that remapped an index).
            # This is no commit of ours.
            return {}
        return (transaction.transaction_properties or {}) if transaction is not None else {}


def ids_predicate(sample_ids: Iterable[str]) -> str:
    """Return an SQL predicate for the rows of these samples."""
    return (
        "sample_id IN ("
        + ",".join("'" + sample_id.replace("'", "''") + "'" for sample_id in sample_ids)
        + ")"
    )


@dataclass(frozen=True)
class _Fragments:
    """The fragments of one version: by id, and the ids by data file, ascending.

    ``identity`` is the table and its manifest, which names each fragment.
    """

    identity: tuple[str, bytes]
    by_id: Mapping[int, Any]
    by_file: Mapping[str, Sequence[int]]


# Of the version that was asked for last. A shard's proof and each step of a commit ask for it, and to list
# ten thousand fragments takes 80 ms; the manifest alone takes a tenth.
_last: _Fragments | None = None


def _fragments_of(dataset: lance.LanceDataset) -> _Fragments:
    global _last
    opened_from: Any = dataset.__reduce__()  # type: ignore[no-untyped-call]
    manifest: bytes = opened_from[1][3]
    identity = (dataset.uri, xxhash.xxh3_128_digest(manifest))
    found = _last
    if found is None or found.identity != identity:
        by_id = {fragment.fragment_id: fragment.metadata for fragment in dataset.get_fragments()}
        by_file: dict[str, list[int]] = {}
        for id_, metadata in sorted(by_id.items()):
            for file in metadata.files:
                by_file.setdefault(_path_of(file), []).append(id_)
        found = _last = _Fragments(identity, by_id, by_file)
    return found


def _path_of(file: Any) -> str:
    """Return the path of a data file.

    Lance's own property makes a class at each call, and of a table of 5,000 fragments all are asked for.
    """
    path = vars(file).get("_path")
    return file.path if path is None else str(path)


class StaleSnapshot(MmAssetsError, CommitConflictError):
    """The table got a new version while its records were read."""


def retry_on_conflict(action: Callable[[], Result]) -> Result:
    """Return the result of ``action``, called again after each conflict of commits, and `until_answered`.

    Raises:
        CommitConflictError, OSError: after about half a minute of conflicts.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return until_answered(action)
        except (CommitConflictError, OSError) as error:
            if attempt == _ATTEMPTS - 1 or not _is_conflict(error):
                raise
            time.sleep(random.uniform(0.2, 1.0) * min(_LONGEST_WAIT, 0.01 * 2 ** min(attempt, 10)))
    raise AssertionError("unreachable")


def _is_conflict(error: Exception) -> bool:
    """Return whether another commit came first. Of indexes, Lance says so in words alone."""
    return isinstance(error, CommitConflictError) or _CONFLICT in str(error)


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


_ROWS_AT_ONCE = 4096


def is_readable(uri: str, read: Callable[[], object]) -> bool:
    """Return whether ``read`` succeeds.

    Raises:
        StoreError: nobody can tell, as the store refuses.
    """
    try:
        with naming_table(uri):
            until_answered(read)
    except StoreError:
        raise
    except OSError:
        return False
    return True


def unreadable_text(fragments: Sequence[Any], error: Exception) -> str | None:
    """Return which sample and column are meant if Lance refuses text that is not UTF-8; else None."""
    if "utf-8" not in str(error):
        return None
    for fragment in fragments:
        for stored, field in zip(fragment.schema.names, with_original_names(fragment.schema), strict=True):
            numbers = list(range(fragment.count_rows()))
            if not any(word in str(field.type) for word in ("string", "json")):
                continue
            for start in range(0, len(numbers), _ROWS_AT_ONCE):
                rows = numbers[start : start + _ROWS_AT_ONCE]
                if not _refuses(fragment, rows, stored):
                    continue
                place = f"rows {rows[0]} to {rows[-1]}"
                while len(rows) > 1 and "dictionary" not in str(field.type):
                    half = rows[: len(rows) // 2]
                    rows = half if _refuses(fragment, half, stored) else rows[len(half) :]
                if len(rows) == 1:
                    place = f"row {rows[0]}"
                    if not _refuses(fragment, rows, "sample_id"):
                        sample_id = fragment.take(rows, columns=["sample_id"]).column(0)[0].as_py()
                        place = f"sample {sample_id!r:.200}"
                return f"{place}, column {field.name!r}: text that is not UTF-8"
    return None


def _refuses(fragment: Any, rows: Sequence[int], column: str) -> bool:
    try:
        fragment.take(rows, columns=[column])
    except RAISED as error:
        return "utf-8" in str(error)
    return False


def unreadable_fragments(
    uri: str, snapshot: Snapshot, records: Mapping[str, Sequence[PartitionRecord]]
) -> set[int]:
    """Return the fragments of some partitions of which not even the sample ids can be read."""
    fragment_ids = {
        id_ for entries in records.values() for record in entries for id_ in snapshot.all_fragment_ids(record)
    }
    return {id_ for id_ in fragment_ids if not is_readable(uri, lambda id_=id_: _read_ids(snapshot, id_))}  # type: ignore[misc]


def _read_ids(snapshot: Snapshot, fragment: int) -> None:
    scanner = snapshot.dataset.scanner(columns=["sample_id"], fragments=[snapshot.fragment(fragment)])
    rows = sum(batch.num_rows for batch in scanner.to_batches())
    if rows != snapshot.fragments[fragment].num_rows:
        raise ValueError(f"{rows} rows instead of {snapshot.fragments[fragment].num_rows}")
