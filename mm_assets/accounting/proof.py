"""Proofs of zero loss: what a canonical reader found in each output, against what was written.

proof/<asset>/<digest>.parquet   a row for each `ShardProof`: one shard of one output, as examined
proof/proof.json                 the sums over all shards of each output, and what differs

`ProofStore` keeps them. Each run writes one file of proofs for an output, named by the digest of its bytes;
small files are merged. Of a shard the latest proof counts. Earlier releases had a file for each proof
(``proof/<asset>/<partition>.json``), which are read, and merged by the next run.

`Evidence` tells which shards of an output were published, from everything in storage but the output itself.
Without it, a deleted output would be an output that nobody misses.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from importlib.metadata import version
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from mm_assets import __version__
from mm_assets.accounting import BY_ASSET, ShardRecord, made_from, stated_partitions
from mm_assets.accounting.accounts import Ledger
from mm_assets.formats.names import partition_filename
from mm_assets.formats.parquet import UNREADABLE, read_buffer
from mm_assets.storage.files import (
    filesystem,
    is_remote,
    join,
    publish_bytes,
    read_bytes,
    remove,
)
from mm_assets.storage.listing import expand_paths
from mm_assets.storage.small_files import SEAL, seal, unseal
from mm_assets.storage.stamps import files_in, parallel_map

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

    def holds(self, record: ShardRecord, stat: Mapping[str, Any] | None) -> bool:
        """Return whether the output was found equal, and is still the one that was examined.

        A tar without samples has no file.

        Args:
            record: of the shard as it is now.
            stat: what its output looks like now.
        """
        written = record.account["written"]
        if not self.is_equal or (not self.stat and written["rows"]):
            return False
        found, expected = [self.stat, self.written], [stat, written]
        return found == expected or _as_json(found) == _as_json(expected)

    def to_bytes(self) -> bytes:
        """Return the proof as sealed JSON."""
        return seal({"format": FORMAT, **vars(self)})

    @classmethod
    def from_bytes(cls, data: bytes) -> ShardProof | None:
        """Return a proof; None if the file is torn or of another format, so that it is examined again."""
        try:
            return cls._from_fields(unseal(data))
        except (ValueError, TypeError, LookupError, AttributeError):
            return None

    @classmethod
    def from_row(cls, text: str) -> ShardProof | None:
        """Return the proof in a row of a file that is as it was written; None if it is of another format."""
        try:
            fields: dict[str, Any] = json.loads(text)
            del fields[SEAL]
            return cls._from_fields(fields)
        except (ValueError, TypeError, LookupError, AttributeError):
            return None

    @classmethod
    def _from_fields(cls, fields: dict[str, Any]) -> ShardProof | None:
        if fields.pop("format") != FORMAT:
            return None
        problems, beside = tuple(fields["problems"]), tuple(fields.get("beside", ()))
        return cls(**{**fields, "problems": problems, "beside": beside})


def _as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


# Folders below the root, each with a folder per asset and a file per shard: suffix, and name of the evidence.
_TRACES = {
    "ledger/accounts": (".parquet", "its account"),
    # what earlier releases have written:
    "proof": (".json", "an earlier proof"),
    "ledger": (".json", "its record"),
    "ledger/balance": (".parquet", "its balance in the ledger"),
    "ledger/items": (".parquet", "its items in the ledger"),
}


class Evidence:
    """Traces of shards below a storage root (folder or URL)."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._ledger = Ledger(root)

    def of(self, asset: str) -> dict[str, list[str]]:
        """Return the shards of an asset that were published once, with the kinds of evidence for each.

        Evidence are accounts and proofs, and accounts of outputs made from the asset. A file that tells
        its shard neither by name nor by content is listed under its file name.
        """
        found: dict[str, list[str]] = {}
        for folder, (suffix, what) in _TRACES.items():
            below = join(self._root, folder, partition_filename(asset))
            for partition in stated_partitions(below, suffix):
                found.setdefault(partition, []).append(what)
        for partition in ProofStore(self._root).partitions(asset):
            found.setdefault(partition, []).append("an earlier proof")
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
            files = expand_paths(folder, output.format.suffixes)
        except FileNotFoundError:
            return []
        named = {output.uri(self._root, partition) for partition in known}
        return sorted(file.removeprefix(f"{self._root.rstrip('/')}/") for file in files if file not in named)


_MODULUS = 1 << 128
_COUNTS = ("rows", "samples", "images", "texts", "lost_rows")
_DIGESTS = ("digest", "lost_digest")
_NAMED = ("reader", "config")

SCHEMA = pa.schema(
    [
        pa.field("partition", pa.string(), nullable=False),
        *(pa.field(name, pa.int64()) for name in _COUNTS),
        *(pa.field(name, pa.string()) for name in _DIGESTS),
        *(pa.field(name, pa.string(), nullable=False) for name in _NAMED),
        pa.field("is_equal", pa.bool_(), nullable=False),
        pa.field("examined_at", pa.string(), nullable=False),
        pa.field("problems", pa.list_(pa.field("element", pa.string())), nullable=False),
        pa.field("proof", pa.string(), nullable=False),  # the whole of it, as sealed JSON
    ]
)


def proof_table(proofs: Iterable[ShardProof]) -> pa.Table:
    """Return the rows of these proofs."""
    return pa.Table.from_pylist([_row(proof) for proof in proofs], SCHEMA)


def latest(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the latest proof of each shard in these tables of the same columns, ordered by partition."""
    table = pa.concat_tables(tables).sort_by([("partition", "ascending"), ("examined_at", "ascending")])
    names = table["partition"].combine_chunks()
    if len(names) < 2:
        return table.combine_chunks()
    is_last = [*pc.not_equal(names[:-1], names[1:]).to_pylist(), True]
    return table.filter(pa.array(is_last)).combine_chunks()


def to_bytes(table: pa.Table) -> bytes:
    """Return the table as a Parquet file; equal tables give equal bytes."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue().to_pybytes()


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
        "proof": proof.to_bytes().decode(),
    }


SUMMARY = "proof.json"
_SUMMARY_FORMAT = 4
_PACKAGES = ("pyarrow", "webdataset", "pylance", "xxhash")
_SUFFIX, _EARLIER = ".parquet", ".json"
_KEY = ("partition", "examined_at")
_SUMMED = tuple(name for name in SCHEMA.names if name != "proof")
_OVERHEAD_BYTES = 8192  # of any file of proofs
_MERGED_UP_TO = 2  # times the size of what is added: each row is rewritten a logarithmic number of times


_Listed = list[tuple[int, str]]  # bytes and names of files


class ProofStore:
    """Proofs below a storage root (folder or URL)."""

    def __init__(self, root: str) -> None:
        self._folder = join(root, "proof")
        self._fs, self._path = filesystem(self._folder)

    def read(
        self, asset: str, partitions: Iterable[str], *, with_equal: bool = True
    ) -> dict[str, ShardProof]:
        """Return the last proofs of some shards, without those that have none that can be read.

        Args:
            with_equal: whether also those that found an output equal.
        """
        table = self._table(asset, [*_KEY, "is_equal", "proof"])
        wanted = pc.is_in(table["partition"], pa.array(list(partitions), pa.string()))
        if not with_equal:
            wanted = pc.and_(wanted, pc.invert(table["is_equal"]))
        proofs = map(ShardProof.from_row, table.filter(wanted)["proof"].to_pylist())
        return {proof.partition: proof for proof in proofs if proof is not None and proof.asset == asset}

    def partitions(self, asset: str) -> list[str]:
        """Return the shards of an asset that have a proof."""
        return [str(partition) for partition in self._table(asset, _KEY)["partition"].to_pylist()]

    def drop(self, partitions: Collection[str]) -> None:
        """Remove the proofs of some shards."""
        previous = self.summary()
        unmade = {
            asset: [name for name in names if name not in partitions]
            for asset, names in previous.get("unmade", {}).items()
        }
        found = {}
        for asset, listed in self._listings().items():
            files = self._files(asset, SCHEMA.names, listed)
            table = latest([SCHEMA.empty_table(), *(rows for _, rows in files.values())])
            gone = pc.is_in(table["partition"], pa.array(list(partitions), pa.string()))
            kept = table.filter(pc.invert(gone)).combine_chunks()
            if kept.num_rows < table.num_rows:
                self._replace(asset, kept, files)
            found[asset] = totals(kept)
        self._publish_summary(_summary(found, unmade, previous.get("unknown_files", {})))

    def add(self, asset: str, proofs: Iterable[ShardProof]) -> None:
        """Keep proofs that are not kept yet, together with those of the smallest files."""
        listed = self._listed(asset)
        files = self._files(asset, _KEY, listed)
        known = {row for _, rows in files.values() for row in zip(*rows.to_pydict().values(), strict=True)}
        latest_at = dict(sorted(known))
        new = [
            _after(proof, latest_at.get(proof.partition, ""))
            for proof in proofs
            if (proof.partition, proof.examined_at) not in known
        ]
        # Files of earlier releases become one with the new ones; those that cannot be read go.
        merged = {name for _, name in listed if name not in files or name.endswith(_EARLIER)}
        if not new and not merged:
            return
        table = proof_table(new)
        size = table.nbytes + _OVERHEAD_BYTES
        for name, (nbytes, _) in files.items():
            if name not in merged:
                if nbytes > _MERGED_UP_TO * size:
                    break
                size += nbytes
                merged.add(name)
        some = [entry for entry in listed if entry[1] in merged]
        tables = [rows for _, rows in self._files(asset, SCHEMA.names, some).values()]
        self._replace(asset, latest([table, *tables]), merged)

    def roll_up(
        self,
        examined: Mapping[str, Sequence[ShardProof]],
        unmade: Mapping[str, Sequence[str]] | None = None,
        unknown: Mapping[str, Sequence[str]] | None = None,
    ) -> dict[str, Any]:
        """Keep these proofs, bring the sums up to date, and return ``proof.json``.

        Args:
            examined: proofs made now, by asset.
            unmade: shards that its source has but the asset lacks, by asset; of others the previous ones,
                without those examined now.
            unknown: files that belong to no shard, by asset; of others the previous ones.
        """
        for asset, proofs in examined.items():
            self.add(asset, proofs)
        previous = self.summary()
        all_unmade = dict(previous.get("unmade", {}))
        for asset, proofs in examined.items():
            keys = {proof.partition for proof in proofs}
            all_unmade[asset] = [key for key in all_unmade.get(asset, ()) if key not in keys]
        all_unmade |= unmade or {}
        all_unknown = previous.get("unknown_files", {}) | (unknown or {})
        while True:
            # Until nothing has changed meanwhile: another run may be bringing them up to date.
            listings = self._listings()
            found = {name: totals(self._table(name, _SUMMED, listed)) for name, listed in listings.items()}
            summary = _summary(found, all_unmade, all_unknown)
            if summary == previous:
                return summary
            self._publish_summary(summary)
            previous = summary

    def summary(self) -> dict[str, Any]:
        """Return ``proof.json``; nothing where there is none that can be read."""
        data = read_bytes(join(self._folder, SUMMARY))
        try:
            summary = unseal(data) if data is not None else {}
        except ValueError:  # torn or changed: made again from the proofs
            return {}
        return summary if summary.get("format") == _SUMMARY_FORMAT else {}

    def _table(self, asset: str, columns: Sequence[str], listed: _Listed | None = None) -> pa.Table:
        """Return columns of the latest proof of each shard of an asset."""
        files = self._files(asset, columns, self._listed(asset) if listed is None else listed)
        empty = SCHEMA.empty_table().select(columns)
        return latest([empty, *(rows for _, rows in files.values())])

    def _files(self, asset: str, columns: Sequence[str], listed: _Listed) -> dict[str, tuple[int, pa.Table]]:
        """Return bytes and columns of these files with proofs.

        One that is not as it was written counts as none.
        """
        folder = join(self._folder, partition_filename(asset))

        def read(entry: tuple[int, str]) -> pa.Table | None:
            data = read_bytes(join(folder, entry[1]))
            return None if data is None else _rows(entry[1], data, columns)

        found = zip(listed, parallel_map(read, listed, folder), strict=True)
        return {name: (size, rows) for (size, name), rows in found if rows is not None}

    def _listed(self, asset: str) -> _Listed:
        """Return bytes and names of the files with proofs, the smallest first."""
        found = files_in(join(self._folder, partition_filename(asset)))
        return _with_proofs((file.size, name) for name, file in found.items())

    def _listings(self) -> dict[str, _Listed]:
        """Return `_listed` of each asset that has proofs; their names need no escaping."""
        if not is_remote(self._folder):
            names = os.listdir(self._path) if os.path.isdir(self._path) else []
            # Files and hidden ones have a dot.
            return {name: self._listed(name) for name in sorted(names) if "." not in name}
        self._fs.invalidate_cache()
        found: dict[str, list[tuple[int, str]]] = {}
        for path, info in self._fs.find(self._path, detail=True).items():
            *_, folder, asset, name = f"/{path}".split("/")
            if folder == "proof" and "." not in asset:
                found.setdefault(asset, []).append((int(info["size"]), name))
        return {asset: _with_proofs(found[asset]) for asset in sorted(found)}

    def _replace(self, asset: str, table: pa.Table, files: Iterable[str]) -> None:
        """Publish a table of proofs in the place of some files."""
        folder, data = join(self._folder, partition_filename(asset)), to_bytes(table)
        if table.num_rows:
            publish_bytes(join(folder, _name(data)), data)
        replaced = [name for name in files if name != _name(data)]
        for name in replaced:
            remove(join(folder, name))
        if any(name.endswith(_EARLIER) for name in replaced):  # which had a table of them, too
            remove(f"{folder}{_SUFFIX}")

    def _publish_summary(self, summary: Mapping[str, Any]) -> None:
        # Not synced to disk: an empty file counts as none.
        uri, data = join(self._folder, SUMMARY), seal(summary)
        if is_remote(uri) or read_bytes(uri) != data:
            publish_bytes(uri, data)


def _with_proofs(files: Iterable[tuple[int, str]]) -> _Listed:
    """Return those of some files that have proofs, the smallest first; hidden files are temporary."""
    named = [entry for entry in files if entry[1].endswith((_SUFFIX, _EARLIER))]
    return sorted(entry for entry in named if not entry[1].startswith("."))


def _after(proof: ShardProof, latest_at: str) -> ShardProof:
    """Return a proof that counts as later than the one before, by a clock that may have been ahead."""
    if not latest_at or proof.examined_at > latest_at:
        return proof
    later = datetime.fromisoformat(latest_at) + timedelta(microseconds=1)
    return replace(proof, examined_at=later.isoformat(timespec="microseconds"))


def _name(data: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(data) + _SUFFIX


def _rows(name: str, data: bytes, columns: Sequence[str]) -> pa.Table | None:
    """Return columns of the proofs in a file; None if it is not as it was written."""
    if name.endswith(_EARLIER):
        proof = ShardProof.from_bytes(data)
        return None if proof is None else proof_table([proof]).select(columns)
    if _name(data) != name:
        return None
    try:
        table = read_buffer(data, columns).replace_schema_metadata(None)
    except UNREADABLE:
        return None
    return table if table.schema.equals(pa.schema([SCHEMA.field(column) for column in columns])) else None


def damaged_shards(root: str, asset: str, partitions: Iterable[str]) -> set[str]:
    """Return the partitions of an asset whose last proof found an output other than was written."""
    proofs = ProofStore(root).read(asset, partitions, with_equal=False)
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
