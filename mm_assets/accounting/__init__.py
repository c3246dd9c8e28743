"""Accounting: outputs of the graph, and the account of each published shard: its record, and its ledger.

* `OUTPUTS`: the outputs, each with its location below the storage root, format and source.
* `ShardRecord`: which inputs, code and configuration an output was made from (`fingerprint`), what came out,
  and what the file looked like then (`stat`).
* `digest_files`: the small files beside the data (scores, quarantine). Their digests are in the record, under
  ``files`` of its account: path below the storage root -> bytes and xxh3-128 of the file, or null where the
  shard has no such file. With them, missing or changed files are found.
* `stated_partitions`: the partitions that the files of a folder belong to. Names tell; a file is opened only
  where its name is too long to do so.
* Ledger: items in, items out and each lost item. `Balance` holds the ones against the others, with digests;
  `account_table` makes the rows, in `ACCOUNT_SCHEMA`; `lost_items` and `items_table` are lost items alone.

`mm_assets.accounting.accounts` keeps records and ledger; conversions publish lists of lost items beside the
output.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mm_assets.formats.arrow_cache import digest_of
from mm_assets.formats.names import Format, format_of, partition_filename
from mm_assets.formats.parquet import SHARD, place_of_images, publish_table, read_buffer
from mm_assets.formats.reports import PartitionReport
from mm_assets.formats.writer import InterleavedWriter
from mm_assets.model.losses import Loss
from mm_assets.model.samples import parse_source_ref
from mm_assets.storage.files import (
    StagedFile,
    filesystem,
    is_remote,
    join,
    open_binary,
    remove,
)
from mm_assets.storage.listing import LEDGER_BESIDE
from mm_assets.storage.stamps import existing_files, parallel_map, stat_outputs

LEDGER_FOLDER = "ledger"
ACCOUNTS_FOLDER = "accounts"  # in that of the ledger


def stated_partitions(folder: str, suffix: str) -> list[str]:
    """Return the partitions that the files of a folder belong to, by name or content; none without a folder.

    A file that tells its partition by neither is listed under its file name.

    Args:
        folder: a folder with one file per partition.
        suffix: suffix of these files; others are left out.
    """
    fs, path = filesystem(folder)
    fs.invalidate_cache()
    try:
        # The listing of fsspec asks the file system about each local file.
        files = fs.ls(path, detail=False) if is_remote(folder) else os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    names = [str(file).rpartition("/")[2] for file in files]
    stems = [
        name.removesuffix(suffix) for name in names if name.endswith(suffix) and not name.startswith(".")
    ]

    def partition_inside(stem: str) -> str | None:
        try:
            return _stated(fs.cat_file(join(path, f"{stem}{suffix}")), suffix) or stem
        except FileNotFoundError:  # removed since the listing
            return None

    # File names longer than 80 characters are digests: only the content tells the shard's name.
    digests = [stem for stem in stems if stem.startswith("=")]
    inside = dict(zip(digests, parallel_map(partition_inside, digests, folder), strict=True))
    found = (inside[stem] if stem in inside else unquote(stem) for stem in stems)
    return [partition for partition in found if partition is not None]


def _stated(data: bytes, suffix: str) -> str | None:
    """Return the shard named inside an account, a proof or a table; None if it cannot be read."""
    try:
        if suffix == ".parquet":
            named = (pq.read_metadata(pa.BufferReader(data)).metadata or {}).get(SHARD.encode())
            return named.decode() if named else str(read_buffer(data, ["partition"]).column(0)[0].as_py())
        fields = json.loads(data)
        return str(fields.get("key") or fields["partition"])
    except (ValueError, LookupError, AttributeError, OSError, RecursionError):
        return None


@dataclass(frozen=True)
class Output:
    """One asset of interleaved rows, below ``folder`` of the storage root.

    ``kind`` is its format, ``source`` the output that it is made from (None: raw shards).
    """

    asset: str
    kind: str
    folder: str
    source: str | None = None

    @property
    def format(self) -> Format:
        """The record of its format."""
        return format_of(self.kind)

    def uri(self, root: str, partition: str) -> str:
        """Return the file of a shard (for a cache its metadata), or the one table."""
        return self.format.uri(join(root, self.folder), partition)

    def place(self, root: str, partition: str) -> str:
        """Return the location of a shard's output: the file or the folder, or the one table."""
        return self.format.output(self.uri(root, partition))


CURATED = Output("curated_parquet", "parquet", "curated")
FILTERED = Output("filtered_parquet", "parquet", "filtered", CURATED.asset)
TARS = Output("final_tars", "webdataset", "webdataset", FILTERED.asset)
LANCE = Output("lance_table", "lance", "lance/items.lance", FILTERED.asset)
CACHE = Output("arrow_cache", "arrow_cache", "arrow_cache", FILTERED.asset)
OUTPUTS = (CURATED, FILTERED, TARS, LANCE, CACHE)
# The set to train from, which is made from all shards at once, and the note on it.
TRAINING, TRAINING_FOLDER, TRAINING_NOTE = "training_set", "training", "ledger/training_set.json"
BY_ASSET = {output.asset: output for output in OUTPUTS}
# Assets without samples, by the output they are made from: their files are proven with its shards.
DERIVED = {CURATED.asset: ("image_scores", "sample_scores", "quarantine")}
# Their folders below the storage root, with a Parquet file for each shard.
DERIVED_FOLDERS = {"image_scores": "scores", "sample_scores": "sample_scores", "quarantine": "quarantine"}


def made_from(asset: str) -> tuple[Output, ...]:
    """Return the outputs that are made from an asset."""
    return tuple(output for output in OUTPUTS if output.source == asset)


LOST_IDS = "lost_ids"
"""In an account: ids of samples that were lost when the raw shard was read, as far as they are listed."""
PUBLISHED = "published"
"""In an account of `CURATED`: schema and columns that the shard was published with (`published_to_text`)."""
REFERRED = "referenced_images"
"""In the metadata of `FILTERED`: number of images that the output does not have, but refers to."""
INDEXES = ("surveys", "published", "tars")
_OF_ACCOUNTS = "accounts"


@dataclass(frozen=True)
class ShardRecord:
    """Record of one published shard.

    Attributes:
        asset: the asset.
        key: the partition key.
        fingerprint: digest of code, options and inputs.
        version: data version: a digest of the content.
        uri: the output.
        stat: `stat_output(uri)` right after publication.
        metadata: reported with the shard, so that it can be reported again.
        checks: check results, likewise.
        account: counts, digests and options, as needed for a proof.
        rows_digest: digest of the rows of its account (`mm_assets.accounting.accounts`).
        lost_rows: number of the rows with lost items among them.
    """

    asset: str
    key: str
    fingerprint: str
    version: str
    uri: str
    stat: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    checks: list[dict[str, Any]] = field(default_factory=list)
    account: Mapping[str, Any] = field(default_factory=dict)
    rows_digest: str = ""
    lost_rows: int = 0

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any], format_: int) -> ShardRecord:
        """Return a record as it was stored.

        Raises:
            ValueError, TypeError: it is of another format.
        """
        if fields.get("format") != format_:
            raise ValueError(f"not of format {format_}")
        return cls(**{name: value for name, value in fields.items() if name != "format"})

    def checked(self, asset: str, name: str) -> ShardRecord:
        """Return the record.

        Raises:
            ValueError: it is not of this asset, and of the partition whose files have this name.
        """
        if (self.asset, partition_filename(self.key)) != (asset, name):
            raise ValueError(f"belongs to shard {self.key!r} of {self.asset}")
        return self

    @property
    def is_earlier(self) -> bool:
        """Whether an earlier release wrote it, before records and rows were in one account."""
        return not self.rows_digest

    def lost_ids(self, raw_version: str) -> frozenset[str]:
        """Return the `LOST_IDS` of a raw shard in a version; none if it was read in another one."""
        is_of_version = raw_version in self.account.get("inputs", {}).values()
        return frozenset(self.account.get(LOST_IDS, ()) if is_of_version else ())


def index_folder(root: str, kind: str) -> str:
    """Return where a storage root has the `FileIndex` of one of `INDEXES`."""
    return join(root, "ledger", "index", kind)


def account_index_folder(root: str, asset: str) -> str:
    """Return where a storage root has the `FileIndex` of the accounts of an asset."""
    return join(index_folder(root, _OF_ACCOUNTS), partition_filename(asset))


def lists_folder(root: str) -> str:
    """Return where a storage root keeps the lists of ids that its filters have applied."""
    return join(root, "ledger", "lists")


def statistics_folder(root: str) -> str:
    """Return where a storage root keeps the set-wide statistics that its filters look at."""
    return join(root, "ledger", "statistics")


def account_folders(root: str, asset: str) -> list[str]:
    """Return the local folders with an asset's accounts, where dead processes may have left files."""
    ledger, name = os.path.join(root, "ledger"), partition_filename(asset)
    below = [f"accounts/{name}", "raw_shards"]
    return [
        *(index_folder(root, kind) for kind in INDEXES),
        account_index_folder(root, asset),
        *(os.path.join(ledger, folder) for folder in below),
        os.path.join(root, "proof"),
        os.path.join(root, "proof", name),
    ]


def present_stats(asset: str, records: Mapping[str, ShardRecord]) -> dict[str, Mapping[str, Any]]:
    """Return the present state of the output of each shard that has one, and of images that it refers to."""
    if BY_ASSET[asset].format.is_table:
        # A shard has no file of its own in a table; its record has the commit of its rows.
        return {key: record.stat for key, record in records.items() if record.stat is not None}
    images = {key: place_of_images(one.uri) for key, one in records.items() if one.metadata.get(REFERRED)}
    found = stat_outputs({*(record.uri for record in records.values() if record.uri), *images.values()})
    stats = {key: stat for key, record in records.items() if (stat := found.get(record.uri)) is not None}
    return stats | {key: {**stats[key], "images": found.get(images[key])} for key in images if key in stats}


FILES = "files"


FileDigest = Mapping[str, Any]


def digest_files(root: str, uris: Iterable[str]) -> dict[str, FileDigest | None]:
    """Return the present digests of files below ``root``, by path below it; None for missing files.

    Every byte is read.
    """
    uris = list(uris)
    if is_remote(root):
        filesystem(root)[0].invalidate_cache()
    found = parallel_map(_digest, uris, root)
    return {uri.removeprefix(join(root, "")): digest for uri, digest in zip(uris, found, strict=True)}


def recorded_files(record: ShardRecord, *uris: str) -> dict[str, FileDigest | None]:
    """Return the digests in a shard's record, of all its files or of those among ``uris``.

    Records of older versions have none.
    """
    files: Mapping[str, FileDigest | None] = record.account.get(FILES, {})
    return {
        path: digest
        for path, digest in files.items()
        if not uris or any(uri.endswith(f"/{path}") for uri in uris)
    }


def _digest(uri: str) -> FileDigest | None:
    try:
        with open_binary(uri) as file:
            digest = digest_of(file)
            return {"bytes": file.tell(), "digest": digest}
    except FileNotFoundError:
        return None


def publish_digested(file: StagedFile) -> FileDigest:
    """Publish an output; return what `digest_files` tells of it then, without reading it there."""
    with open(file.path, "rb") as content:
        digest = digest_of(content)
    return {"bytes": file.publish(), "digest": digest}


def file_problem(path: str, written: FileDigest | None, found: FileDigest | None) -> str:
    """Return a line if a small file is not as written: missing, cut, changed or unexpected; else no text."""
    if written == found:
        return ""
    if written is None:
        return f"{path}: nothing was written, and yet there is a file"
    if found is None:
        return f"{path}: missing"
    if written["bytes"] != found["bytes"]:
        return f"{path}: {written['bytes']} bytes written, {found['bytes']} found"
    return f"{path}: other bytes than were written"


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
_SUMS = (IN, OUT, LOST)
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


def publish_losses(uri: str, items: pa.Table) -> None:
    """Publish a table of lost items; without any, remove the file of an earlier run."""
    if items.num_rows:
        publish_table(uri, items)
    else:
        remove(uri)


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
    is_sum = pc.is_in(rows.column("outcome"), value_set=pa.array(_SUMS))
    return rows.filter(pc.invert(is_sum)).select(ITEMS_SCHEMA.names).cast(ITEMS_SCHEMA)


def count_lost_items(rows: pa.Table) -> int:
    """Return how many rows `lost_items` has."""
    # Most shards have a few rows, which pyarrow would take fifteen times as long for.
    outcomes = Counter(rows.column("outcome").to_pylist())
    return len(rows) - sum(outcomes[name] for name in _SUMS)


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


def lost_items_folder(writer: InterleavedWriter) -> str:
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
        reports_of[join(lost_items_folder(writer), f"{name}.parquet")] = report
    earlier = existing_files(uri for uri, report in reports_of.items() if not report.losses)
    for uri, report in reports_of.items():
        if report.losses or uri in earlier:
            publish_losses(uri, items_table("convert", report.partition, report.losses))
