"""Proofs of zero loss: what a canonical reader found in each output, against what was written.

proof/<asset>/<partition>.json   `ShardProof`: one shard of one output, as last examined
proof/<asset>.parquet            table of these proofs, a row per shard: sums open this file alone
proof/proof.json                 the sums over all shards of each output, and what differs

`ProofStore` keeps them. The last two are derived from the first, so they can always be rebuilt.

`Evidence` tells which shards of an output were published, from everything in storage but the output itself.
Without it, a deleted output would be an output that nobody misses.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mm_assets import __version__
from mm_assets.accounting.ledger import Ledger
from mm_assets.accounting.record import BY_ASSET, made_from, stated_partitions
from mm_assets.formats.names import partition_filename
from mm_assets.formats.parquet.files import UNREADABLE, read_buffer
from mm_assets.storage.files import StorageOptions, filesystem, is_remote, join, publish_bytes, read_bytes
from mm_assets.storage.listing import expand_paths
from mm_assets.storage.small_files import seal, unseal

FORMAT = 3


@dataclass(frozen=True)
class ShardProof:
    """Proof of one shard of one output.

    Attributes:
        asset: the asset.
        partition: the shard.
        reader: the canonical reader used.
        written: rows, samples, images, texts and digest as the writer reported them.
        derived: the same as the canonical reader finds them.
        lost: number and digest of the rows taken out.
        config: identifies code and options.
        stat: tells whether the output is still the one that was examined.
        problems: one line for each difference.
        beside: those problems that concern only index files, ledger, scores and quarantine beside the output,
            which the next run repairs by itself, or the store, which did not give out the output.
        examined_at: time of the examination (UTC, ISO 8601).
    """

    asset: str
    partition: str
    reader: str
    written: Mapping[str, Any]
    derived: Mapping[str, Any]
    lost: Mapping[str, Any] = field(default_factory=dict)
    config: str = ""
    stat: Mapping[str, Any] | None = None
    problems: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    examined_at: str = ""

    @property
    def is_equal(self) -> bool:
        """True if there are no problems."""
        return not self.problems

    @property
    def is_damaged(self) -> bool:
        """True if the output itself differs from what was written."""
        return not set(self.problems) <= set(self.beside)

    def to_bytes(self) -> bytes:
        """Return the proof as sealed JSON."""
        return seal({"format": FORMAT, **vars(self)})

    @classmethod
    def from_bytes(cls, data: bytes) -> ShardProof | None:
        """Return a proof; None if the file is torn or of another format, so that it is examined again."""
        try:
            fields = unseal(data)
            if fields.pop("format") != FORMAT:
                return None
            return cls(
                **{
                    **fields,
                    "problems": tuple(fields["problems"]),
                    "beside": tuple(fields.get("beside", ())),
                }
            )
        except (ValueError, TypeError, LookupError, AttributeError):
            return None


# Folders below the root, each with a folder per asset and a file per shard: suffix, and name of the evidence.
_TRACES = {
    "ledger/accounts": (".parquet", "its account"),
    "proof": (".json", "an earlier proof"),
    # what earlier releases have written:
    "ledger": (".json", "its record"),
    "ledger/balance": (".parquet", "its balance in the ledger"),
    "ledger/items": (".parquet", "its items in the ledger"),
}


class Evidence:
    """Traces of shards below a storage root (folder or URL)."""

    def __init__(self, root: str, options: StorageOptions | None = None) -> None:
        self._root = root
        self._options = options
        self._ledger = Ledger(root, options)

    def of(self, asset: str) -> dict[str, list[str]]:
        """Return the shards of an asset that were published once, with the kinds of evidence for each.

        Evidence are accounts and proofs, and accounts of outputs made from the asset. A file that tells
        its shard neither by name nor by content is listed under its file name.
        """
        found: dict[str, list[str]] = {}
        for folder, (suffix, what) in _TRACES.items():
            below = join(self._root, folder, partition_filename(asset))
            for partition in stated_partitions(below, suffix, self._options):
                found.setdefault(partition, []).append(what)
        for output in made_from(asset):
            for partition in self._ledger.named(output.asset):
                found.setdefault(partition, []).append(f"the account of {output.asset}")
        return found

    def unmade(self, asset: str) -> list[str]:
        """Return shards that were published in the source of an asset, but never made in the asset itself."""
        source = BY_ASSET[asset].source
        if source is None:
            return []
        return sorted(set(self._ledger.partitions(source)).difference(self.of(asset)))

    def unknown_files(self, asset: str, known: Iterable[str]) -> list[str]:
        """Return files in the folder of an output that belong to none of these shards.

        They are listed as readers of the folder find them, relative to the root. A table has no files of
        single shards.
        """
        output = BY_ASSET[asset]
        if output.format.is_table:
            return []
        folder = join(self._root, output.folder)
        try:
            files = expand_paths(folder, output.format.suffixes, self._options)
        except FileNotFoundError:
            return []
        named = {output.uri(self._root, partition) for partition in known}
        return sorted(file.removeprefix(f"{self._root.rstrip('/')}/") for file in files if file not in named)


_MODULUS = 1 << 128
_COUNTS = ("rows", "samples", "images", "texts", "lost_rows")
_DIGESTS = ("digest", "lost_digest")
_NAMED = ("reader", "config")
_TOTALS = b"mm_assets:totals"  # key in the Parquet metadata

SCHEMA = pa.schema(
    [
        pa.field("partition", pa.string(), nullable=False),
        *(pa.field(name, pa.int64()) for name in _COUNTS),
        *(pa.field(name, pa.string()) for name in _DIGESTS),
        *(pa.field(name, pa.string(), nullable=False) for name in _NAMED),
        pa.field("is_equal", pa.bool_(), nullable=False),
        pa.field("examined_at", pa.string(), nullable=False),
        pa.field("problems", pa.list_(pa.field("element", pa.string())), nullable=False),
    ]
)


def proof_table(proofs: Iterable[ShardProof]) -> pa.Table:
    """Return the rows of these proofs."""
    return pa.Table.from_pylist([_row(proof) for proof in proofs], SCHEMA)


def merged(table: pa.Table, examined: Sequence[ShardProof]) -> pa.Table:
    """Return the table with these proofs in the place of earlier ones, ordered by partition."""
    others = without(table, [proof.partition for proof in examined])
    return pa.concat_tables([others, proof_table(examined)]).sort_by("partition").combine_chunks()


def without(table: pa.Table, partitions: Collection[str]) -> pa.Table:
    """Return the table without the rows of these partitions."""
    gone = pc.is_in(table["partition"], pa.array(list(partitions), pa.string()))
    return table.filter(pc.invert(gone))


def to_bytes(table: pa.Table) -> bytes:
    """Return the table and its sums as a Parquet file with checksums; equal tables give equal bytes."""
    sink = pa.BufferOutputStream()
    stated = table.replace_schema_metadata({_TOTALS: seal(totals(table))})
    pq.write_table(stated, sink, compression="zstd", write_page_checksum=True)
    return sink.getvalue().to_pybytes()


def from_bytes(data: bytes) -> pa.Table | None:
    """Return the table of a file; None if it is torn, changed or of another layout."""
    try:
        table = read_buffer(data, verify=True)
    except UNREADABLE:
        return None
    return table.replace_schema_metadata(None) if table.schema.equals(SCHEMA) else None


def stated_totals(data: bytes) -> dict[str, Any] | None:
    """Return the sums that a file states, without reading its rows; None as `from_bytes`."""
    try:
        return unseal(pq.read_schema(pa.BufferReader(data)).metadata[_TOTALS])
    except UNREADABLE:
        return None


def totals(table: pa.Table) -> dict[str, Any]:
    """Return the sums of a table: number of shards, counts, digests modulo 2^128, and all problems."""
    unequal = table.filter(pc.invert(table["is_equal"])).select(["partition", "problems"])
    problems: Mapping[str, list[str]] = {row["partition"]: row["problems"] for row in unequal.to_pylist()}
    return {
        "shards": table.num_rows,
        "is_equal": not problems,
        **{name: pc.sum(table[name]).as_py() or 0 for name in _COUNTS},
        **{name: _sum_of_digests(table[name]) for name in _DIGESTS},
        **{name: sorted(pc.unique(table[name]).to_pylist()) for name in _NAMED},
        "problems": problems,
    }


def _sum_of_digests(column: pa.ChunkedArray) -> str:
    return f"{sum(int(digest or '0', 16) for digest in column.to_pylist()) % _MODULUS:032x}"


def _row(proof: ShardProof) -> dict[str, Any]:
    return {
        "partition": proof.partition,
        **{name: proof.derived[name] for name in ("rows", "samples", "images", "texts", "digest")},
        **{f"lost_{name}": proof.lost.get(name) for name in ("rows", "digest")},
        "reader": proof.reader,
        "config": proof.config,
        "is_equal": proof.is_equal,
        "examined_at": proof.examined_at,
        "problems": list(proof.problems),
    }


SUMMARY = "proof.json"
_SUMMARY_FORMAT = 4
_PACKAGES = ("pyarrow", "webdataset", "pylance", "xxhash")
_THREADS = 16


class ProofStore:
    """Proofs below a storage root (folder or URL)."""

    def __init__(self, root: str, options: StorageOptions | None = None) -> None:
        self._folder = join(root, "proof")
        self._options = options
        self._fs, self._path = filesystem(self._folder, options)

    def read(self, asset: str, partition: str) -> ShardProof | None:
        """Return the last proof of a shard; None without one, or with an unreadable one."""
        data = read_bytes(self.uri(asset, partition), self._options)
        proof = None if data is None else ShardProof.from_bytes(data)
        return proof if proof is not None and (proof.asset, proof.partition) == (asset, partition) else None

    def read_many(self, asset: str, partitions: Iterable[str]) -> dict[str, ShardProof]:
        """Return the last proofs of some shards, without those that have none that can be read."""
        partitions = list(partitions)
        with ThreadPoolExecutor(_THREADS) as threads:
            found = threads.map(lambda partition: self.read(asset, partition), partitions)
            return {key: proof for key, proof in zip(partitions, found, strict=True) if proof is not None}

    def write(self, proof: ShardProof) -> None:
        """Publish one shard's proof; an unchanged one is not rewritten."""
        self._publish(self.uri(proof.asset, proof.partition), proof.to_bytes())

    def uri(self, asset: str, partition: str) -> str:
        """Return the location of a shard's proof."""
        return join(self._folder, partition_filename(asset), f"{partition_filename(partition)}.json")

    def drop(self, partitions: Collection[str]) -> None:
        """Take partitions out of tables and ``proof.json``; the proofs themselves must be gone by then."""
        previous = self._summary()
        unmade = {
            asset: [name for name in names if name not in partitions]
            for asset, names in previous.get("unmade", {}).items()
        }
        totals = {asset: self._updated(asset, gone=partitions) for asset in self._assets()}
        self._publish_summary(_summary(totals, unmade, previous.get("unknown_files", {})))

    def roll_up(
        self,
        asset: str,
        examined: Sequence[ShardProof],
        unmade: Sequence[str] | None = None,
        unknown: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        """Bring table and sums of an asset up to date with these proofs, and return ``proof.json``.

        Args:
            asset: the asset that they are proofs of.
            examined: proofs made now.
            unmade: shards that its source has but the asset lacks; None: the previous ones, without those
                examined now.
            unknown: files that belong to no shard; None: the previous ones.
        """
        total = self._updated(asset, examined)
        previous = self._summary()
        keys = {proof.partition for proof in examined}
        still_unmade = [key for key in previous.get("unmade", {}).get(asset, ()) if key not in keys]
        all_unmade = {**previous.get("unmade", {}), asset: still_unmade if unmade is None else unmade}
        all_unknown = previous.get("unknown_files", {}) | ({} if unknown is None else {asset: unknown})
        while True:
            # Those of other assets from their tables: another run may be bringing them up to date.
            summary = _summary({**self._totals(), asset: total}, all_unmade, all_unknown)
            if summary == previous:
                return summary
            self._publish_summary(summary)
            previous = summary

    def _summary(self) -> dict[str, Any]:
        data = read_bytes(join(self._folder, SUMMARY), self._options)
        try:
            summary = unseal(data) if data is not None else {}
        except ValueError:  # torn or changed: rebuilt from the proofs
            return {}
        return summary if summary.get("format") == _SUMMARY_FORMAT else {}

    def _updated(
        self, asset: str, examined: Sequence[ShardProof] = (), gone: Collection[str] = ()
    ) -> dict[str, Any]:
        """Publish the table of an asset with these proofs and without what is gone, and return its sums.

        If it does not cover every shard that has a proof, it is made again from all proofs.
        """
        uri, names = self._table_uri(asset), self._names(asset)
        data = read_bytes(uri, self._options)
        table = None if data is None else from_bytes(data)
        if table is not None:
            table = merged(without(table, gone), examined)
        if table is None or table.num_rows != len(names):
            table = self._rebuilt(asset, names)
        if (updated := to_bytes(table)) != data:
            self._publish(uri, updated)
        return totals(table)

    def _totals(self) -> dict[str, dict[str, Any]]:
        """Return the sums of each asset that has proofs, as its published table states them."""
        found = {}
        for asset in self._assets():
            data = read_bytes(self._table_uri(asset), self._options)
            stated = None if data is None else stated_totals(data)
            found[asset] = self._updated(asset) if stated is None else stated
        return found

    def _table_uri(self, asset: str) -> str:
        return join(self._folder, f"{partition_filename(asset)}.parquet")

    def _rebuilt(self, asset: str, names: Sequence[str]) -> pa.Table:
        folder = f"{self._path}/{partition_filename(asset)}"
        with ThreadPoolExecutor(_THREADS) as threads:
            found = threads.map(lambda name: self._fs.cat_file(f"{folder}/{name}"), names)
            proofs = [ShardProof.from_bytes(data) for data in found]
        return merged(proof_table(()), [proof for proof in proofs if proof])

    def _assets(self) -> list[str]:
        """Return the assets that have proofs; their names need no escaping."""
        return [name for name in self._listed(self._path) if not name.endswith((".json", ".parquet"))]

    def _names(self, asset: str) -> list[str]:
        """Return the names of the files with the proofs of an asset; hidden files are temporary."""
        folder = f"{self._path}/{partition_filename(asset)}"
        return [name for name in self._listed(folder) if name.endswith(".json")]

    def _listed(self, folder: str) -> list[str]:
        try:
            if is_remote(self._folder):
                self._fs.invalidate_cache(folder)
                found = [
                    str(path).rstrip("/").rpartition("/")[2] for path in self._fs.ls(folder, detail=False)
                ]
            else:
                found = os.listdir(folder)
        except FileNotFoundError:
            return []
        return sorted(name for name in found if not name.startswith("."))

    def _publish_summary(self, summary: Mapping[str, Any]) -> None:
        self._publish(join(self._folder, SUMMARY), seal(summary))

    def _publish(self, uri: str, data: bytes) -> None:
        # Not synced to disk: an empty proof counts as none, and the shard is examined again.
        if is_remote(uri) or read_bytes(uri, self._options) != data:
            publish_bytes(uri, data, self._options)


def damaged_shards(
    root: str, asset: str, partitions: Iterable[str], options: StorageOptions | None = None
) -> set[str]:
    """Return the partitions of an asset whose last proof found an output other than was written."""
    proofs = ProofStore(root, options).read_many(asset, partitions)
    return {partition for partition, proof in proofs.items() if proof.is_damaged}


def _summary(
    totals: Mapping[str, Mapping[str, Any]],
    unmade: Mapping[str, Sequence[str]],
    unknown: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """Return the content of ``proof.json``."""
    return {
        "format": _SUMMARY_FORMAT,
        "mm_assets": __version__,
        "packages": {name: version(name) for name in _PACKAGES},
        "digest": (
            "sum modulo 2^128 of one xxh3-128 per item over the name, type and value of each of its columns"
        ),
        "is_equal": all(total["is_equal"] for total in totals.values()) and not any(unknown.values()),
        "unmade": {asset: list(keys) for asset, keys in unmade.items() if keys},
        "unknown_files": {asset: list(files) for asset, files in unknown.items() if files},
        "assets": {asset: dict(total) for asset, total in totals.items() if total["shards"]},
    }
