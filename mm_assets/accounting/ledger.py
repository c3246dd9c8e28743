"""Ledger: items in, items out and each lost item of a shard, as the rows of its account.

* `Balance` holds the items in against the items out, with digests.
* `account_table` makes the rows, in `ACCOUNT_SCHEMA`; `lost_items` and `items_table` are lost items alone.
* `mm_assets.accounting.accounts` keeps them; conversions publish lists of lost items beside the output.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.formats.names import partition_filename
from mm_assets.formats.parquet import publish_table
from mm_assets.formats.reports import PartitionReport
from mm_assets.formats.writer import InterleavedWriter
from mm_assets.model.losses import Loss
from mm_assets.model.samples import parse_source_ref
from mm_assets.storage.files import StorageOptions, join, remove
from mm_assets.storage.listing import LEDGER_BESIDE
from mm_assets.storage.stamps import existing_files

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
    return account_rows(asset, partition, sums, items_table(asset, partition, losses))


def account_rows(
    asset: str, partition: str, sums: Mapping[str, Mapping[str, Any]], items: pa.Table
) -> pa.Table:
    """Return rows of ``sums`` by outcome (items, samples, digest) and of lost items, in `ACCOUNT_SCHEMA`."""
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


def lists_folder(writer: InterleavedWriter) -> str:
    """Return the folder of the lists: beside the data, where readers ignore it."""
    any_output = writer.uri_of("any")  # all lie in one folder
    return join(os.path.dirname(any_output) or ".", LEDGER_BESIDE)


def publish_lists(writer: InterleavedWriter, reports: Sequence[PartitionReport]) -> None:
    """Publish a list of lost items per partition, in the columns of the ledger.

    For a partition without losses the list of an earlier conversion is removed.
    """
    reports_of: dict[str, PartitionReport] = {}
    for report in reports:
        output = os.path.basename(writer.uri_of(report.partition)).removesuffix(writer.suffix)
        name = output if writer.is_single_file else partition_filename(report.partition)
        reports_of[join(lists_folder(writer), f"{name}.parquet")] = report
    earlier = existing_files(uri for uri, report in reports_of.items() if not report.losses)
    for uri, report in reports_of.items():
        if report.losses or uri in earlier:
            publish_losses(uri, items_table("convert", report.partition, report.losses))
