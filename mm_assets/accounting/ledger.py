"""Ledger: what is known of each published shard of each asset, in one file, for the next run and for SQL.

    ledger/accounts/<asset>/<partition>.parquet

* The rows (`ACCOUNT_SCHEMA`) are the items in, the items out, and each item that was lost on the way.
  `Balance` holds the ones in against the others, with digests.
* The metadata have the `ShardRecord`: which inputs, code and settings the output was made from, and what came
  out. By it a re-run knows that a shard is unchanged, without the database of the orchestrator.
* `Ledger` reads and writes these files. Each is replaced as a whole, once its output is there.

Earlier releases kept the record (``ledger/<asset>/<partition>.json``), the lost items and the balance
(``ledger/items/``, ``ledger/balance/``) apart. They are read, and `Ledger.upgrade` makes them one file.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mm_assets.accounting.record import (
    CURATED,
    FILES,
    PUBLISHED,
    ShardRecord,
    digest_files,
    file_problem,
    recorded_files,
    stated_partitions,
)
from mm_assets.formats.names import partition_filename
from mm_assets.formats.parquet.files import SHARD, UNREADABLE, UnreadableFile, publish_table, read_buffer
from mm_assets.formats.reports import PartitionReport
from mm_assets.model.digest import ContentDigest
from mm_assets.model.losses import Loss
from mm_assets.model.samples import parse_source_ref
from mm_assets.storage.files import (
    StorageOptions,
    exists,
    is_remote,
    join,
    local_path,
    publish_bytes,
    read_bytes,
    read_end,
    remove,
)
from mm_assets.storage.small_files import seal, unseal
from mm_assets.storage.stamps import parallel_map

log = logging.getLogger(__name__)

ITEMS_SCHEMA = pa.schema(
    [
        pa.field("asset", pa.string(), nullable=False),
        pa.field("partition", pa.string(), nullable=False),
        pa.field("sample_id", pa.string()),
        pa.field("position", pa.int32()),
        pa.field("modality", pa.string()),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("score", pa.float64()),
        pa.field("threshold", pa.string()),
        pa.field("is_cause", pa.bool_(), nullable=False),
        pa.field("source", pa.string()),
        pa.field("member", pa.string()),
        pa.field("byte_offset", pa.int64()),
        pa.field("byte_size", pa.int64()),
        pa.field("frame_index", pa.int32()),
    ]
)
# Outcomes of rows that are no loss: all items that went in, all that came out, all that were taken out.
IN, OUT, LOST = "in", "out", "lost"
_SUMS = pa.array([IN, OUT, LOST])
ACCOUNT_SCHEMA = pa.schema(
    [
        *(ITEMS_SCHEMA.field(name) for name in ("asset", "partition", "outcome")),
        pa.field("kind", pa.string()),
        pa.field("items", pa.int64()),
        pa.field("samples", pa.int64()),
        *(ITEMS_SCHEMA.field(name) for name in ("sample_id", "position", "modality")),
        pa.field("reason", pa.string()),
        *(ITEMS_SCHEMA.field(name) for name in ("score", "threshold")),
        pa.field("is_cause", pa.bool_()),
        *(
            ITEMS_SCHEMA.field(name)
            for name in ("source", "member", "byte_offset", "byte_size", "frame_index")
        ),
        pa.field("digest", pa.string()),
    ]
)
LEDGER_FOLDER = "ledger"
ACCOUNTS_FOLDER = "accounts"
FORMAT = 5
_RECORD = b"mm_assets:record"  # key in the Parquet metadata
_END_BYTES = 64 << 10  # of a remote account: enough for most records, however many items were lost
_MODULUS = 1 << 128  # modulus of the sums in `ContentDigest`


@dataclass(frozen=True)
class Balance:
    """Items in, and where they went; ``filtered`` and ``quarantined`` count them by kind.

    A damaged range holds an unknown number of items: its kind is listed with the count of the known ones,
    even if that is 0. Digests are sums over rows, in hex; None if unknown.

    Attributes:
        items_in: None when the input does not state its number of items.
        items_out: rows written.
        filtered: items that filters took out, by kind.
        quarantined: faulty items, by kind.
        samples_out: samples written.
        in_digest: of the rows of the input.
        out_digest: of the rows written.
        source_digest: of the rows written, in the types they came in with.
        lost_digest: of the rows taken out.
    """

    items_in: int | None
    items_out: int
    filtered: Mapping[str, int]
    quarantined: Mapping[str, int]
    samples_out: int | None = None
    in_digest: str | None = None
    out_digest: str | None = None
    source_digest: str | None = None
    lost_digest: str | None = None

    @classmethod
    def of(cls, report: PartitionReport, in_digest: str | None = None) -> Balance:
        """Return the balance of a writer's report; ``in_digest`` is that of the input's rows."""
        filtered, quarantined = _items_by_kind(report.filtered), _items_by_kind(report.quarantined)
        digests = (
            in_digest,
            report.digest or None,
            report.source_digest or report.digest or None,
            report.lost_digest or None,
        )
        return cls(report.items, report.rows, filtered, quarantined, report.samples, *digests)

    @property
    def difference(self) -> int | None:
        """Items in minus all items accounted for; None: unknown.

        Above 0 some vanished, below 0 some are extra.
        """
        if self.items_in is None:
            return None
        return self.items_in - self.items_out - sum(self.filtered.values()) - sum(self.quarantined.values())

    @property
    def is_balanced(self) -> bool | None:
        """True if every item is accounted for; None: unknown."""
        return None if self.difference is None else self.difference == 0

    @property
    def digests_agree(self) -> bool | None:
        """True if the rows written and those taken out are together the rows of the input; None: unknown."""
        if not self.in_digest or not self.source_digest:
            return None
        total = int(self.source_digest, 16) + int(self.lost_digest or "0", 16)
        return total % _MODULUS == int(self.in_digest, 16)


class Ledger:
    """Accounts of shards below a storage root (a folder or URL).

    URIs below the root are stored relative to it: accounts may be moved or published with the data, without
    paths of this machine in them.
    """

    def __init__(self, root: str, options: StorageOptions | None = None) -> None:
        self._root = root.rstrip("/") + "/"
        self._options = options
        self._earlier = EarlierLedger(root, options)

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

    def records(self, asset: str, partitions: Iterable[str]) -> dict[str, ShardRecord]:
        """Return the records of these shards, without those that do not exist.

        An unreadable account is logged and counts as missing: its shard is made again, which also rewrites
        the account.
        """
        names = {partition_filename(partition): partition for partition in partitions}
        return {names[name]: record for name, record in self.records_by_name(asset, names).items()}

    def records_by_name(self, asset: str, names: Iterable[str]) -> dict[str, ShardRecord]:
        """Return records by the names of their files (`partition_filename`), else as `records`."""
        found: dict[str, ShardRecord] = {}
        names = list(names)
        uris = [join(self.folder(asset), f"{name}.parquet") for name in names]
        contents = parallel_map(self._end_of, uris, self._root)
        for name, uri, data in zip(names, uris, contents, strict=True):
            if data is None:
                continue
            try:
                found[name] = self._checked(record_of(data), asset, name)
            except UNREADABLE as error:
                log.warning("account %s is unreadable, the next run makes its shard again: %s", uri, error)
        missing = [name for name, data in zip(names, contents, strict=True) if data is None]
        for name, record in self._earlier.records(asset, missing).items():
            found[name] = replace(record, uri=self._absolute(record.uri))
        return found

    def partitions(self, asset: str) -> list[str]:
        """Return the shards of an asset that have a readable record, sorted."""
        names = map(partition_filename, self.named(asset))
        return sorted(record.key for record in self.records_by_name(asset, names).values())

    def named(self, asset: str) -> list[str]:
        """Return the shards of an asset that have an account, readable or not, by the names of the files."""
        found = stated_partitions(self.folder(asset), ".parquet", self._options)
        return list(dict.fromkeys([*found, *self._earlier.named(asset)]))

    def write(self, record: ShardRecord, rows: pa.Table | None = None) -> None:
        """Publish an account in one step: readers see the old one or the new one.

        Args:
            record: what is known of the shard.
            rows: see `account_table`; None for an asset without items of its own.
        """
        # Not synced to disk: if a power cut leaves an empty file, its shard is made again.
        stated = replace(record, uri=self.relative(record.uri))
        uri = self.uri(record.asset, record.key)
        publish_bytes(
            uri, _account(stated, ACCOUNT_SCHEMA.empty_table() if rows is None else rows), self._options
        )
        self._earlier.remove(record.asset, record.key)

    def items(self, asset: str, partition: str) -> pa.Table:
        """Return the lost items of a shard in `ITEMS_SCHEMA`; no rows if it lost none or has no account.

        Raises:
            UnreadableFile: the account is damaged.
        """
        rows = self.account(asset, partition)
        return self._earlier.items(asset, partition) if rows is None else lost_items(rows)

    def recorded_items(self, record: ShardRecord) -> pa.Table:
        """Return the `items` of a shard if they are those that its record was written with.

        Raises:
            UnreadableFile: they are damaged, missing or others.
        """
        if problems := self.problems([record]):
            raise UnreadableFile("; ".join(problems[record.key]))
        return self.items(record.asset, record.key)

    def account(self, asset: str, partition: str) -> pa.Table | None:
        """Return the rows of an account in `ACCOUNT_SCHEMA`; None if there is none. Raises as `items`."""
        uri = self.uri(asset, partition)
        data = read_bytes(uri, self._options)
        if data is None:
            return None
        try:
            return read_buffer(data, ACCOUNT_SCHEMA.names, verify=True).cast(ACCOUNT_SCHEMA)
        except UNREADABLE as error:
            raise UnreadableFile(f"{uri}: damaged: {' '.join(str(error).split())}") from error

    def problems(self, records: Iterable[ShardRecord]) -> dict[str, list[str]]:
        """Return a line for each small file of a shard that is not as it was written, by shard.

        These are the rows of its account, and the files of scores and quarantine. Shards without problems
        are left out. The files of all shards are read in one go.
        """
        records = list(records)
        written = {record.key: recorded_files(record) for record in records}
        uris = [join(self._root, path) for files in written.values() for path in files]
        present = digest_files(self._root, uris, self._options)
        of_rows = parallel_map(self._row_problem, records, self._root)
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
        rows = self._earlier.account(record.asset, record.key)
        files = {path: found for path, found in recorded_files(record).items() if not _is_of_ledger(path)}
        account = {name: value for name, value in record.account.items() if name != FILES}
        self.write(replace(record, account=account | ({FILES: files} if files else {})), rows)

    def relative(self, uri: str) -> str:
        """Return a URI below the root as "./…"; any other, and an empty one, unchanged."""
        return f"./{uri.removeprefix(self._root)}" if uri.startswith(self._root) else uri

    def _absolute(self, uri: str) -> str:
        return self._root + uri.removeprefix("./") if uri.startswith("./") else uri

    def _checked(self, record: ShardRecord, asset: str, name: str) -> ShardRecord:
        """Return the record with its URI; it must be of this asset and file."""
        if (record.asset, partition_filename(record.key)) != (asset, name):
            raise ValueError(f"belongs to shard {record.key!r} of {record.asset}")
        return replace(record, uri=self._absolute(record.uri))

    def _row_problem(self, record: ShardRecord) -> str:
        """Return a line if the rows of a shard's account are not those that its record was written with."""
        if record.is_earlier:  # it has digests of the files
            return ""
        path = self.uri(record.asset, record.key).removeprefix(self._root)
        try:
            rows = self.account(record.asset, record.key)
        except UnreadableFile as error:
            return str(error).removeprefix(self._root)
        if rows is None:
            return f"{path}: missing"
        return "" if _digest(rows) == record.rows_digest else f"{path}: other rows than were written"

    def _end_of(self, uri: str) -> bytes | None:
        """Return the end of an account, with all of its metadata; None if it does not exist."""
        end = read_end(uri, _END_BYTES, self._options)
        if end is None or int.from_bytes(end[-8:-4], "little") + 8 <= len(end):
            return end
        return read_bytes(uri, self._options)


def _account(record: ShardRecord, rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    fields = {**vars(record), "rows_digest": _digest(rows), "lost_rows": lost_items(rows).num_rows}
    sealed = seal({"format": FORMAT, **fields}).decode()
    with pq.ParquetWriter(sink, ACCOUNT_SCHEMA, compression="zstd", write_page_checksum=True) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata({_RECORD.decode(): sealed, SHARD: record.key})
    return sink.getvalue().to_pybytes()


def record_of(data: bytes) -> ShardRecord:
    """Return the record in an account, or in the end of one.

    Raises:
        UNREADABLE: (one of these classes) the data is anything else.
    """
    return _record(pq.read_metadata(pa.BufferReader(data)).metadata[_RECORD], FORMAT)


def _record(data: bytes, format_: int) -> ShardRecord:
    fields = unseal(data)
    if fields.pop("format", None) != format_:
        raise ValueError(f"not of format {format_}")
    return ShardRecord(**fields)


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


_EARLIER_FORMAT = 4
_OF_NOTE = ("format", "partition")  # keys of a note on what was published that say whose it is


class EarlierLedger:
    """What an earlier release has left below a storage root: a record, lost items and a balance apart."""

    def __init__(self, root: str, options: StorageOptions | None = None) -> None:
        self._root = join(root, LEDGER_FOLDER)
        self._options = options

    @cached_property
    def exists(self) -> bool:
        """Whether there is anything of an earlier release."""
        return exists(join(self._root, "balance"), self._options)

    def item_folders(self, asset: str) -> list[str]:
        return [join(self._root, "items", partition_filename(asset))] if self.exists else []

    def uris(self, asset: str, partition: str) -> list[str]:
        if not self.exists:
            return []
        asset, name = partition_filename(asset), partition_filename(partition)
        uris = [join(self._root, asset, f"{name}.json")]
        uris += [join(self._root, folder, asset, f"{name}.parquet") for folder in ("items", "balance")]
        if asset == CURATED.asset:
            uris.append(self._published(name))
            uris.append(join(self._root, "sample_ids", f"{name}.parquet"))
        return uris

    def records(self, asset: str, names: Sequence[str]) -> dict[str, ShardRecord]:
        """Return records by the names of their files."""
        if not names or not self.exists:
            return {}
        folder = join(self._root, partition_filename(asset))
        found = parallel_map(lambda name: self._read(folder, asset, name), names, self._root)
        return {name: record for name, record in zip(names, found, strict=True) if record is not None}

    def _read(self, folder: str, asset: str, name: str) -> ShardRecord | None:
        uri = join(folder, f"{name}.json")
        data = read_bytes(uri, self._options)
        if data is None:
            return None
        try:
            record = _record(data, _EARLIER_FORMAT)
            if (record.asset, partition_filename(record.key)) != (asset, name):
                raise ValueError(f"belongs to shard {record.key!r} of {record.asset}")
        except (ValueError, TypeError) as error:
            log.warning("record %s is unreadable, the next run makes its shard again: %s", uri, error)
            return None
        published = read_bytes(self._published(name), self._options) if asset == CURATED.asset else None
        with suppress(ValueError, LookupError):  # without it the output itself is read
            if published is not None:
                content = json.loads(unseal(published)["content"])
                text = json.dumps({name: content[name] for name in content if name not in _OF_NOTE})
                return replace(record, account={**record.account, PUBLISHED: text})
        return record

    def _published(self, name: str) -> str:
        return join(self._root, "raw_shards", f"{name}.published.json")

    def named(self, asset: str) -> list[str]:
        folder = join(self._root, partition_filename(asset))
        return stated_partitions(folder, ".json", self._options) if self.exists else []

    def items(self, asset: str, partition: str) -> pa.Table:
        """Return lost items in `ITEMS_SCHEMA`."""
        items = self._table("items", asset, partition, ITEMS_SCHEMA.names)
        return ITEMS_SCHEMA.empty_table() if items is None else items

    def account(self, asset: str, partition: str) -> pa.Table:
        """Return lost items and balance as the rows of an account."""
        balance = self._table("balance", asset, partition, ["entry", "items", "samples", "digest"])
        if balance is None:
            return account_table(asset, partition)
        sums = {row.pop("entry"): row for row in balance.to_pylist()}
        return _rows(asset, partition, sums, self.items(asset, partition))

    def remove(self, asset: str, partition: str) -> None:
        """Remove what an account has replaced, and local folders that are empty then."""
        for uri in self.uris(asset, partition):
            remove(uri, self._options)
            if not is_remote(uri):
                folder = Path(local_path(uri)).parent
                with suppress(OSError):  # not empty
                    folder.rmdir()
                    folder.parent.rmdir()

    def _table(self, folder: str, asset: str, partition: str, columns: Sequence[str]) -> pa.Table | None:
        name = f"{partition_filename(partition)}.parquet"
        uri = join(self._root, folder, partition_filename(asset), name)
        data = read_bytes(uri, self._options) if self.exists else None
        try:
            return None if data is None else read_buffer(data, columns)
        except UNREADABLE as error:
            raise UnreadableFile(f"{uri}: damaged: {' '.join(str(error).split())}") from error


def publish_losses(uri: str, items: pa.Table, options: StorageOptions | None = None) -> None:
    """Publish a table of lost items; without any, remove the file of an earlier run."""
    if items.num_rows:
        publish_table(uri, items, options)
    else:
        remove(uri, options)


def items_table(asset: str, partition: str, losses: Iterable[Loss]) -> pa.Table:
    """Return a table with one row per loss, in `ITEMS_SCHEMA`."""
    rows = [_row(asset, partition, loss) for loss in losses]
    return pa.Table.from_arrays(
        [_column([row[f.name] for row in rows], f.type) for f in ITEMS_SCHEMA], schema=ITEMS_SCHEMA
    )


def account_table(
    asset: str, partition: str, balance: Balance | None = None, losses: Iterable[Loss] = ()
) -> pa.Table:
    """Return the rows of an account; none without a balance, for an asset without items of its own."""
    if balance is None:
        return ACCOUNT_SCHEMA.empty_table()
    sums: dict[str, dict[str, Any]] = {
        IN: {"items": balance.items_in, "digest": balance.in_digest},
        OUT: {"items": balance.items_out, "samples": balance.samples_out, "digest": balance.out_digest},
    }
    if balance.lost_digest is not None:
        sums[LOST] = {"digest": balance.lost_digest}
    return _rows(asset, partition, sums, items_table(asset, partition, losses))


def _rows(asset: str, partition: str, sums: Mapping[str, Mapping[str, Any]], items: pa.Table) -> pa.Table:
    stated = [
        {"asset": asset, "partition": partition, "outcome": outcome, **sums[outcome]}
        for outcome in (IN, OUT, LOST)
        if outcome in sums
    ]
    # A damaged range holds an unknown number of items, a member that no sample names is none.
    counts = pc.cast(pc.is_valid(items.column("position")), pa.int64())
    columns = {name: items.column(name) for name in items.column_names} | {"items": counts}
    missing = pa.nulls(items.num_rows)
    lost = pa.Table.from_arrays(
        [columns.get(field.name, missing).cast(field.type) for field in ACCOUNT_SCHEMA], schema=ACCOUNT_SCHEMA
    )
    return pa.concat_tables([pa.Table.from_pylist(stated, schema=ACCOUNT_SCHEMA), lost])


def lost_items(rows: pa.Table) -> pa.Table:
    """Return the lost items among the rows of an account, in `ITEMS_SCHEMA`."""
    is_sum = pc.is_in(rows.column("outcome"), value_set=_SUMS)
    return rows.filter(pc.invert(is_sum)).select(ITEMS_SCHEMA.names).cast(ITEMS_SCHEMA)


def _items_by_kind(losses: Iterable[Loss]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for loss in losses:
        counts[loss.kind] += loss.is_item
    return dict(counts)


def locator_columns(source_ref: str | None) -> dict[str, Any]:
    """Return the columns ``source member byte_offset byte_size frame_index`` of a locator.

    Invalid values are null.
    """
    try:
        ref: Mapping[str, Any] = parse_source_ref(source_ref)
    except (TypeError, ValueError):
        ref = {}
    return {
        "source": _text(ref.get("path")),
        "member": _text(ref.get("member")),
        "byte_offset": _number(ref.get("byte_offset"), 63),
        "byte_size": _number(ref.get("byte_size"), 63),
        "frame_index": _number(ref.get("frame_index"), 31),
    }


def _row(asset: str, partition: str, loss: Loss) -> dict[str, Any]:
    row = {"asset": asset, "partition": partition, **loss.__dict__}
    return row | locator_columns(row.pop("source_ref"))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object, bits: int) -> int | None:
    """Return a byte or frame number, or None: locators come with the data and may hold anything."""
    return (
        value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << bits else None
    )


def _column(values: list[Any], type_: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, type_)
    except UnicodeEncodeError:  # a lone surrogate in text that comes from bad data
        return pa.array(
            [None if v is None else v.encode("utf-8", "backslashreplace").decode() for v in values], type_
        )
