"""Ledger: the items in, the items out and each lost item of every asset and shard, as tables for SQL.

* `Ledger` reads and writes two Parquet files a shard: its lost items, and its balance, an entry for items in,
  out, and lost by kind.
* `Balance` holds items in against items out, and their digests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from mm_assets.accounting.record import ShardRecord, file_problems, recorded_files
from mm_assets.formats.names import partition_filename
from mm_assets.formats.parquet.files import UnreadableFile, publish_table, read_small_table
from mm_assets.formats.reports import (
    PartitionReport,
)
from mm_assets.model.losses import Loss
from mm_assets.model.samples import parse_source_ref
from mm_assets.storage.files import StorageOptions, exists, join, remove

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
BALANCE_SCHEMA = pa.schema(
    [
        pa.field("asset", pa.string(), nullable=False),
        pa.field("partition", pa.string(), nullable=False),
        pa.field("entry", pa.string(), nullable=False),
        pa.field("kind", pa.string()),
        pa.field("items", pa.int64()),
        pa.field("samples", pa.int64()),
        pa.field("digest", pa.string()),
    ]
)
LEDGER_FOLDER = "ledger"
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
    """Ledger tables below a storage root (folder or URL).

    ``ledger/items/<asset>/<partition>.parquet`` has one row per lost item (`ITEMS_SCHEMA`); a shard without
    losses has no file. ``ledger/balance/<asset>/<partition>.parquet`` has one row per entry
    (`BALANCE_SCHEMA`): ``in``, ``out``, ``filtered`` and ``quarantined`` by kind. The entry ``lost`` has the
    digest of all rows taken out, whose items the other entries count. All files of a table have the same
    columns and types. A file is only rewritten if it changes.
    """

    def __init__(self, root: str, options: StorageOptions | None = None) -> None:
        self._storage = root
        self._root = join(root, LEDGER_FOLDER)
        self._options = options

    def items_folder(self, asset: str) -> str:
        """Return the folder with the lost items of an asset, one file per shard."""
        return join(self._root, "items", partition_filename(asset))

    def items_uri(self, asset: str, partition: str) -> str:
        """Return the location of the lost items of a shard."""
        return join(self.items_folder(asset), _file_name(partition))

    def balance_uri(self, asset: str, partition: str) -> str:
        """Return the location of the balance of a shard."""
        return join(self._root, "balance", partition_filename(asset), _file_name(partition))

    def write(
        self,
        asset: str,
        partition: str,
        account: PartitionReport | tuple[Balance, Sequence[Loss]],
        in_digest: str | None = None,
    ) -> Balance:
        """Write the ledger of one shard in place of the previous one; each file appears as a whole.

        Args:
            asset: the asset.
            partition: the shard.
            account: a writer's report, or a balance with the losses that it counts.
            in_digest: for a report, the digest of the input's rows.

        Returns:
            The balance written.
        """
        balance, losses = (
            account if isinstance(account, tuple) else (Balance.of(account, in_digest), account.losses)
        )
        publish_losses(self.items_uri(asset, partition), items_table(asset, partition, losses), self._options)
        publish_table(
            self.balance_uri(asset, partition),
            balance_table(asset, partition, balance, losses),
            self._options,
        )
        return balance

    def items(self, asset: str, partition: str) -> pa.Table:
        """Return the lost items of a shard; no rows if it lost none or has no ledger.

        Raises:
            UnreadableFile: the file is damaged.
        """
        return self._read(self.items_uri(asset, partition), ITEMS_SCHEMA)

    def recorded_items(self, asset: str, partition: str, record: ShardRecord | None) -> pa.Table:
        """Return the `items` of a shard if the file is the one that its record describes.

        Raises:
            UnreadableFile: the file is damaged, missing or another.
        """
        uri = self.items_uri(asset, partition)
        if record is not None and (
            line := "; ".join(file_problems(self._storage, recorded_files(record, uri), self._options))
        ):
            raise UnreadableFile(line)
        return self.items(asset, partition)

    def balance(self, asset: str, partition: str) -> pa.Table:
        """Return the entries of a shard; no rows if it has no ledger.

        Raises:
            UnreadableFile: the file is damaged.
        """
        return self._read(self.balance_uri(asset, partition), BALANCE_SCHEMA)

    def uris(self, asset: str, partition: str) -> list[str]:
        """Return the locations of a shard's two files, existing or not."""
        return [self.items_uri(asset, partition), self.balance_uri(asset, partition)]

    def _read(self, uri: str, schema: pa.Schema) -> pa.Table:
        if not exists(uri, self._options):
            return schema.empty_table()
        return read_small_table(uri, schema.names, self._options)


def _file_name(partition: str) -> str:
    return f"{partition_filename(partition)}.parquet"


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


def balance_table(asset: str, partition: str, balance: Balance, losses: Iterable[Loss]) -> pa.Table:
    """Return a table with one row per entry, in `BALANCE_SCHEMA`."""
    samples = _samples_by_kind(losses)
    entries: list[dict[str, Any]] = [
        {"entry": "in", "items": balance.items_in, "digest": balance.in_digest},
        {
            "entry": "out",
            "items": balance.items_out,
            "samples": balance.samples_out,
            "digest": balance.out_digest,
        },
    ]
    for entry, kinds in (("filtered", balance.filtered), ("quarantined", balance.quarantined)):
        entries += [
            {"entry": entry, "kind": kind, "items": items, "samples": samples.get((entry, kind))}
            for kind, items in sorted(kinds.items())
        ]
    if balance.lost_digest is not None:
        entries.append({"entry": "lost", "digest": balance.lost_digest})
    return pa.Table.from_pylist(
        [{"asset": asset, "partition": partition, **entry} for entry in entries], schema=BALANCE_SCHEMA
    )


def _items_by_kind(losses: Iterable[Loss]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for loss in losses:
        counts[loss.kind] += loss.is_item
    return dict(counts)


def _samples_by_kind(losses: Iterable[Loss]) -> dict[tuple[str, str], int | None]:
    """Count samples with losses by outcome and kind; None where a damaged range holds unknown ones."""
    ids: dict[tuple[str, str], set[str | None]] = {}
    for loss in losses:
        ids.setdefault((loss.outcome, loss.kind), set()).add(loss.sample_id if loss.is_item else None)
    return {key: None if None in found else len(found) for key, found in ids.items()}


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
