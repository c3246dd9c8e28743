"""Accounts: what is known of each published shard of each asset, in one file, for the next run and for SQL.

    ledger/accounts/<asset>/<partition>.parquet

* The rows (`mm_assets.accounting`) are the items in, the items out, and each item that was lost.
* The metadata have the `ShardRecord`: which inputs, code and settings the output was made from, and what came
  out. By it a re-run knows that a shard is unchanged, without the database of the orchestrator.
* `Ledger` reads and writes these files. Each is replaced as a whole, once its output is there.

Earlier releases kept the record (``ledger/<asset>/<partition>.json``), the lost items and the balance
(``ledger/items/``, ``ledger/balance/``) apart. They are read, and `Ledger.upgrade` makes them one file.
"""

from __future__ import annotations

import json
import logging
import marshal
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from mm_assets.accounting import (
    ACCOUNT_SCHEMA,
    ACCOUNTS_FOLDER,
    FILES,
    ITEMS_SCHEMA,
    LEDGER_FOLDER,
    PUBLISHED,
    ShardRecord,
    account_index_folder,
    count_lost_items,
    digest_files,
    file_problem,
    lost_items,
    recorded_files,
    stated_partitions,
)
from mm_assets.accounting.earlier_ledger import EarlierLedger
from mm_assets.formats.names import partition_filename
from mm_assets.formats.parquet import SHARD, UNREADABLE, UnreadableFile, read_buffer
from mm_assets.model.digest import ContentDigest
from mm_assets.storage.errors import readable_store_errors
from mm_assets.storage.files import (
    is_remote,
    join,
    local_path,
    publish_bytes,
    read_bytes,
    read_end,
    sync,
)
from mm_assets.storage.small_files import (
    SEAL,
    KnownFiles,
    StampedCache,
    content_etag,
    seal,
    small_object,
    unseal,
)
from mm_assets.storage.stamps import files_in, own_stamp, parallel_map

log = logging.getLogger(__name__)

FORMAT = 5
_SUFFIX = ".parquet"
_RECORD = b"mm_assets:record"  # key in the Parquet metadata
_END_BYTES = 64 << 10  # of a remote account: enough for most records, however many items were lost


@dataclass(frozen=True)
class _Account:
    """A record; None if its account or a small file is damaged. By path, the etags of what was read."""

    record: ShardRecord | None
    etags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class WrittenAccount:
    """An account that was written: its location, its stamp, the digest of its bytes, and the record in it."""

    uri: str
    stamp: str
    digest: bytes
    record: ShardRecord

    def remember(self) -> None:
        """Have this process read the record from the account no more, as long as the stamp is the same."""
        _written.add(self.digest)
        _records.keep(self.uri, self.stamp, self.record)


class Ledger:
    """Accounts of shards below a storage root (a folder or URL).

    URIs below the root are stored relative to it: accounts may be moved or published with the data, without
    paths of this machine in them.
    """

    def __init__(self, root: str) -> None:
        self._root = root.rstrip("/") + "/"
        self._earlier = EarlierLedger(root)

    def folder(self, asset: str) -> str:
        """Return the folder with the accounts of an asset, one file per shard."""
        return join(self._root, LEDGER_FOLDER, ACCOUNTS_FOLDER, partition_filename(asset))

    def item_folders(self, asset: str) -> list[str]:
        """Return the folders whose Parquet files have the lost items of an asset."""
        return [self.folder(asset), *self._earlier.item_folders(asset)]

    def uri(self, asset: str, partition: str) -> str:
        """Return the location of an account."""
        return join(self.folder(asset), f"{partition_filename(partition)}.parquet")

    def uris(self, asset: str, partition: str) -> list[str]:
        """Return the locations of all that the ledger may have of a shard, existing or not."""
        return [self.uri(asset, partition), *self._earlier.uris(asset, partition)]

    def records(
        self, asset: str, partitions: Iterable[str], *, with_rows: bool = False
    ) -> dict[str, ShardRecord]:
        """Return the records of these shards, without those that do not exist.

        An unreadable account is logged and counts as missing: its shard is made again, which also rewrites
        the account.

        Args:
            with_rows: whether to read the rows, too, of what is read from a store, for `problems`.
        """
        names = {partition_filename(partition): partition for partition in partitions}
        found = self.records_by_name(asset, names, with_rows=with_rows)
        return {names[name]: record for name, record in found.items()}

    def records_by_name(
        self, asset: str, names: Iterable[str], *, with_rows: bool = False
    ) -> dict[str, ShardRecord]:
        """Return records by the names of their files (`partition_filename`), else as `records`."""
        uris = {name: join(self.folder(asset), f"{name}.parquet") for name in names}
        # First: another process may be making accounts of them, and each is there before its record goes.
        earlier = self._earlier.records(asset, list(uris))
        listed = _stamps(self.folder(asset), len(uris))
        stamps = listed or {}
        known = {name: _recall(uri, stamps.get(uri)) for name, uri in uris.items()}
        found = {name: self._checked(record, asset, name) for name, record in known.items() if record}
        there = uris.values() if listed is None else listed
        unread = [name for name, uri in uris.items() if name not in found and uri in there]
        with_rows &= listed is not None  # with stamps, by which they are known again

        def read(name: str) -> tuple[ShardRecord, str] | Exception | None:
            """Return a record and the digest of rows: the bytes are let go before the next are read."""
            data = read_bytes(uris[name]) if with_rows else _end_of(uris[name], stamps)
            if data is None:
                return None
            try:
                record = record_of(data).checked(asset, name)
            except UNREADABLE as error:
                return error
            return record, _digest_of_rows(data) if with_rows else ""

        for name, answer in zip(unread, parallel_map(read, unread, self._root), strict=True):
            if answer is None:
                continue
            earlier.pop(name, None)
            uri = uris[name]
            if isinstance(answer, Exception):
                log.warning("account %s is unreadable, the next run makes its shard again: %s", uri, answer)
                continue
            record, rows = answer
            found[name] = self._checked(record, asset, name)
            _records.keep(uri, stamps.get(uri), record)
            if rows:
                _rows_read.keep(uri, stamps.get(uri), rows)
        resolved = {name: replace(one, uri=self._absolute(one.uri)) for name, one in earlier.items()}
        return resolved | found

    def whole_records(
        self, asset: str, partitions: Iterable[str], *, keeps: bool = True
    ) -> dict[str, ShardRecord]:
        """Return the records of those shards whose account and small files are as they were written.

        What was found so before, and has the stamps of then, is not read again (`KnownFiles`). What an
        earlier release has left is read each time.

        Args:
            keeps: whether to keep what is read now, for the next time.
        """
        names = {partition_filename(partition): partition for partition in partitions}
        folder = self.folder(asset).removeprefix(self._root)
        index = account_index_folder(self._root, asset)
        known = KnownFiles(self._root, folder, _SUFFIX, index)
        found: dict[str, ShardRecord] = {}
        for name, fields in _parsed(known.recall(names)):
            with suppress(*UNREADABLE):  # it is of another shard
                fields["uri"] = self._absolute(fields["uri"])
                found[name] = ShardRecord.from_fields(fields, FORMAT).checked(asset, name)
        unread = [name for name in names if name not in found]
        earlier = self._earlier.records(asset, unread)  # first, as in `records_by_name`
        answers = parallel_map(lambda name: self._read_whole(asset, name, known), unread, self._root)
        read = {name: account for name, account in zip(unread, answers, strict=True) if account is not None}
        whole = {name: account.record for name, account in read.items() if account.record is not None}
        if keeps:
            texts = {name: json.dumps({"format": FORMAT, **vars(record)}) for name, record in whole.items()}
            with suppress(OSError), readable_store_errors():  # of a ledger that may only be read
                known.keep(texts, {name: read[name].etags for name in whole})
        found |= {name: self._checked(record, asset, name) for name, record in whole.items()}
        records = {names[name]: record for name, record in found.items()}
        others = {name: record for name, record in earlier.items() if name not in read}
        left = [replace(record, uri=self._absolute(record.uri)) for record in others.values()]
        problems = self.problems(left) if left else {}
        return records | {record.key: record for record in left if record.key not in problems}

    def partitions(self, asset: str) -> list[str]:
        """Return the shards of an asset that have a readable record, sorted."""
        names = map(partition_filename, self.named(asset))
        return sorted(record.key for record in self.records_by_name(asset, names).values())

    def named(self, asset: str) -> list[str]:
        """Return the shards of an asset that have an account, readable or not, by the names of the files."""
        earlier = self._earlier.named(asset)  # first, as in `records_by_name`
        found = stated_partitions(self.folder(asset), ".parquet")
        return list(dict.fromkeys([*found, *earlier]))

    def write(self, record: ShardRecord, rows: pa.Table | None = None) -> WrittenAccount:
        """Publish an account in one step: readers see the old one or the new one.

        Args:
            record: what is known of the shard.
            rows: see `account_table`; None for an asset without items of its own.
        """
        # Not synced to disk: if a power cut leaves an empty file, its shard is made again.
        stated = replace(record, uri=self.relative(record.uri))
        uri = self.uri(record.asset, record.key)
        data, found = _account(stated, ACCOUNT_SCHEMA.empty_table() if rows is None else rows)
        publish_bytes(uri, data)
        etag = content_etag(uri, data)
        stamp = f"{len(data)}:{etag}" if etag else own_stamp(local_path(uri))
        written = WrittenAccount(uri, stamp, xxhash.xxh3_128_digest(data), found)
        if self._earlier.exists and not is_remote(uri):  # which was synced when it was written
            sync(local_path(uri))
            sync(os.path.dirname(local_path(uri)))
        self.remove_earlier(record)
        return written

    def remove_earlier(self, record: ShardRecord) -> None:
        """Remove what an earlier release has kept of a shard that has an account."""
        self._earlier.remove(record.asset, record.key)

    def items(self, asset: str, partition: str) -> pa.Table:
        """Return the lost items of a shard in `ITEMS_SCHEMA`; no rows if it lost none or has no account.

        Raises:
            UnreadableFile: the account is damaged.
        """
        earlier = self._earlier.items(asset, partition)  # first, as in `records_by_name`
        rows = self.rows(asset, partition)
        return earlier if rows is None else lost_items(rows)

    def recorded_items(self, record: ShardRecord) -> pa.Table:
        """Return the `items` of a shard if they are those that its record was written with.

        Raises:
            UnreadableFile: they are damaged, missing or others.
        """
        if record.is_earlier:
            if problems := self.problems([record]):
                raise UnreadableFile("; ".join(problems[record.key]))
            return self.items(record.asset, record.key)
        if record.lost_rows == 0:
            return ITEMS_SCHEMA.empty_table()
        return lost_items(self._recorded_rows(record))

    def rows(self, asset: str, partition: str) -> pa.Table | None:
        """Return the rows of an account in `ACCOUNT_SCHEMA`; None if there is none. Raises as `items`."""
        uri = self.uri(asset, partition)
        data = read_bytes(uri)
        if data is None:
            return None
        try:
            return _rows_of(data)
        except UNREADABLE as error:
            raise UnreadableFile(f"{uri}: damaged: {' '.join(str(error).split())}") from error

    def problems(self, records: Iterable[ShardRecord]) -> dict[str, list[str]]:
        """Return a line for each small file of a shard that is not as it was written, by shard.

        These are the rows of its account, and the files of scores and quarantine. Shards without problems
        are left out. The files of all shards are read in one go. Rows that `records` has read are not read
        again while their account has the same stamp.
        """
        records = list(records)
        written = {record.key: recorded_files(record) for record in records}
        uris = [join(self._root, path) for files in written.values() for path in files]
        present = digest_files(self._root, uris)
        stamps: dict[str, str] = {}
        for asset in {record.asset for record in records if self.uri(record.asset, record.key) in _rows_read}:
            stamps |= _stamps(self.folder(asset), len(records)) or {}
        of_rows = parallel_map(lambda record: self._row_problem(record, stamps), records, self._root)
        found: dict[str, list[str]] = {}
        for record, problem in zip(records, of_rows, strict=True):
            lines = [
                file_problem(path, digest, present[path]) for path, digest in written[record.key].items()
            ]
            if lines := [line for line in (problem, *lines) if line]:
                found[record.key] = lines
        return found

    def upgrade(self, record: ShardRecord) -> None:
        """Write the account of a shard whose record is of an earlier release, in the place of its files.

        Raises:
            UnreadableFile: one of the files is damaged.
        """
        rows = self._earlier.rows(record)
        files = {path: found for path, found in recorded_files(record).items() if not _is_of_ledger(path)}
        account = {name: value for name, value in record.account.items() if name != FILES}
        self.write(replace(record, account=account | ({FILES: files} if files else {})), rows).remember()

    def relative(self, uri: str) -> str:
        """Return a URI below the root as "./…"; any other, and an empty one, unchanged."""
        return f"./{uri.removeprefix(self._root)}" if uri.startswith(self._root) else uri

    def _absolute(self, uri: str) -> str:
        return self._root + uri.removeprefix("./") if uri.startswith("./") else uri

    def _checked(self, record: ShardRecord, asset: str, name: str) -> ShardRecord:
        """Return the record with its URI; it must be of this asset and file."""
        return replace(record.checked(asset, name), uri=self._absolute(record.uri))

    def _row_problem(self, record: ShardRecord, stamps: Mapping[str, str]) -> str:
        """Return a line if the rows of a shard's account are not those that its record was written with.

        Args:
            stamps: of accounts in a store, by location.
        """
        uri = self.uri(record.asset, record.key)
        # An account of an earlier release has digests of its files.
        if record.is_earlier or _rows_read.of(uri, stamps.get(uri)) == record.rows_digest:
            return ""
        try:
            self._recorded_rows(record)
        except UnreadableFile as error:
            return str(error)
        return ""

    def _recorded_rows(self, record: ShardRecord) -> pa.Table:
        """Return the rows of a shard's account, which must be those that its record was written with."""
        path = self.uri(record.asset, record.key).removeprefix(self._root)
        try:
            rows = self.rows(record.asset, record.key)
        except UnreadableFile as error:
            raise UnreadableFile(str(error).removeprefix(self._root)) from error
        if rows is None:
            raise UnreadableFile(f"{path}: missing")
        if _digest(rows) != record.rows_digest:
            raise UnreadableFile(f"{path}: other rows than were written")
        return rows

    def _read_whole(self, asset: str, name: str, known: KnownFiles) -> _Account | None:
        """Return a record if its account and small files are as they were written; None: there is none."""
        uri = join(self.folder(asset), f"{name}{_SUFFIX}")
        data = read_bytes(uri)
        if data is None:
            return None
        try:
            record = record_of(data).checked(asset, name)
            is_known = xxhash.xxh3_128_digest(data) in _written
            is_whole = is_known or _digest(_rows_of(data)) == record.rows_digest
        except UNREADABLE as error:
            log.warning("account %s is unreadable, the next run makes its shard again: %s", uri, error)
            return _Account(None)
        etags = {uri.removeprefix(self._root): content_etag(uri, data)}
        for path, written in recorded_files(record).items():
            found = known.file(path)
            if written is not None and found is not None and found.size == written["bytes"]:
                data = read_bytes(join(self._root, path)) or b""
                etags[path] = content_etag(uri, data)
                is_whole &= written == {"bytes": len(data), "digest": xxhash.xxh3_128_hexdigest(data)}
            else:
                etags[path] = ""
                is_whole &= written is None and found is None
        return _Account(record if is_whole else None, etags)


def _parsed(texts: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the fields of records by name; settings, schemas and checks of many are in memory once."""
    known: dict[bytes, Any] = {}

    def shared(value: Any) -> Any:
        return known.setdefault(marshal.dumps(value, 2), value)

    entries = list(texts.items())
    for start in range(0, len(entries), _PARSED_AT_ONCE):
        some = entries[start : start + _PARSED_AT_ONCE]
        parsed = json.loads(f"[{','.join(text for _, text in some)}]")  # fields then share their names, too
        for (name, _), fields in zip(some, parsed, strict=True):
            if fields.get("format") != FORMAT:  # of another release
                continue
            for part in (fields["account"], fields["metadata"]):
                part.update({key: shared(part[key]) for key in _SHARED if key in part})
            fields["checks"] = list(map(shared, fields["checks"]))
            yield name, fields


def _end_of(uri: str, stamps: Mapping[str, str]) -> bytes | None:
    """Return the end of an account, with all of its metadata, or all of it; None if it does not exist."""
    # Lance is not loaded for it: a process that has can hardly fork.
    if uri in stamps and "lance" in sys.modules:
        data = small_object(uri, int(stamps[uri].partition(":")[0]))
        if data:
            return data
    end = read_end(uri, _END_BYTES)
    if end is None or int.from_bytes(end[-8:-4], "little") + 8 <= len(end):
        return end
    return read_bytes(uri)


# Digests of the accounts that this process and its workers have written: nobody need compare their rows with
# their records.
_written: set[bytes] = set()

_PARSED_AT_ONCE = 100  # texts of records
_SHARED = ("settings", "schema", PUBLISHED, "dagster/column_schema")  # parts of accounts and metadata

# Records that this process has written, or read from remote accounts: one run asks for each many times.
_records: StampedCache[ShardRecord] = StampedCache(4000)
_rows_read: StampedCache[str] = StampedCache(4000)  # digests of the rows of remote accounts
_LEAST_LISTED = 4  # fewer accounts are asked for one by one
_LISTED_AT_ONCE = 1000  # files that one request lists
_sizes: dict[str, int] = {}  # of folders, when they were listed last


def _stamps(folder: str, wanted: int) -> dict[str, str] | None:
    """Return the stamp of each account in a remote folder by URI; None if it costs less to ask for each."""
    if not is_remote(folder) or wanted < _LEAST_LISTED or _sizes.get(folder, 0) > _LISTED_AT_ONCE * wanted:
        return None
    listed = files_in(folder, suffix=".parquet")
    _sizes[folder] = len(listed)
    return {join(folder, name): file.stamp for name, file in listed.items()}


def _recall(uri: str, stamp: str | None) -> ShardRecord | None:
    if uri in _records and not is_remote(uri):
        stamp = own_stamp(local_path(uri))
    return _records.of(uri, stamp)


def _digest_of_rows(data: bytes) -> str:
    """Return the digest of the rows of a whole account; empty if they are damaged."""
    with suppress(*UNREADABLE):
        return _digest(_rows_of(data))
    return ""


def _rows_of(data: bytes) -> pa.Table:
    return read_buffer(data, ACCOUNT_SCHEMA.names, verify=True).cast(ACCOUNT_SCHEMA)


def _account(record: ShardRecord, rows: pa.Table) -> tuple[bytes, ShardRecord]:
    """Return an account, and the record as readers find it there."""
    sink = pa.BufferOutputStream()
    fields = {**vars(record), "rows_digest": _digest(rows), "lost_rows": count_lost_items(rows)}
    sealed = seal({"format": FORMAT, **fields}).decode()
    with pq.ParquetWriter(sink, ACCOUNT_SCHEMA, compression="zstd", write_page_checksum=True) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata({_RECORD.decode(): sealed, SHARD: record.key})
    stored = {name: value for name, value in json.loads(sealed).items() if name != SEAL}
    return sink.getvalue().to_pybytes(), ShardRecord.from_fields(stored, FORMAT)


def record_of(data: bytes) -> ShardRecord:
    """Return the record in an account, or in the end of one.

    Raises:
        UNREADABLE: (one of these classes) the data is anything else.
    """
    sealed = pq.read_metadata(pa.BufferReader(data)).metadata[_RECORD]
    return ShardRecord.from_fields(unseal(sealed), FORMAT)


def _digest(rows: pa.Table) -> str:
    content = ContentDigest()
    content.observe(rows)
    return content.hexdigest()


def losses_digest(record: ShardRecord) -> str:
    """Return a digest of the account with the lost items of a shard; empty where it lost none."""
    if not record.is_earlier:
        return record.rows_digest if record.lost_rows else ""
    # The digest of the file with its lost items.
    of_items = join(LEDGER_FOLDER, "items", partition_filename(record.asset), "")
    found = [file for path, file in recorded_files(record).items() if path.startswith(of_items)]
    return str(found[0]["digest"]) if found and found[0] else ""


def _is_of_ledger(path: str) -> bool:
    return path.startswith(f"{LEDGER_FOLDER}/")
