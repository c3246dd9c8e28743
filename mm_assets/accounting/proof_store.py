"""Store of the proofs of zero loss: what a canonical reader finds in each output, against what was written.

proof/<asset>/<partition>.json   one shard of one output, as last examined
proof/<asset>.parquet            a row for each shard of an output (`mm_assets.accounting.proof_table`)
proof/proof.json                 the sums over all shards of each output, and what differs

The last two are derived, so they can always be rebuilt.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from typing import Any

import pyarrow as pa

from mm_assets import __version__
from mm_assets.accounting import proof_table
from mm_assets.accounting.sealed_json import seal, unseal
from mm_assets.accounting.shard_proof import ShardProof
from mm_assets.formats.keys import partition_filename
from mm_assets.formats.storage import (
    StorageOptions,
    filesystem,
    is_remote,
    join,
    publish_bytes,
    read_bytes,
)

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
        table = None if data is None else proof_table.from_bytes(data)
        if table is not None:
            table = proof_table.merged(proof_table.without(table, gone), examined)
        if table is None or table.num_rows != len(names):
            table = self._rebuilt(asset, names)
        if (updated := proof_table.to_bytes(table)) != data:
            self._publish(uri, updated)
        return proof_table.totals(table)

    def _totals(self) -> dict[str, dict[str, Any]]:
        """Return the sums of each asset that has proofs, as its published table states them."""
        found = {}
        for asset in self._assets():
            data = read_bytes(self._table_uri(asset), self._options)
            stated = None if data is None else proof_table.stated_totals(data)
            found[asset] = self._updated(asset) if stated is None else stated
        return found

    def _table_uri(self, asset: str) -> str:
        return join(self._folder, f"{partition_filename(asset)}.parquet")

    def _rebuilt(self, asset: str, names: Sequence[str]) -> pa.Table:
        folder = f"{self._path}/{partition_filename(asset)}"
        with ThreadPoolExecutor(_THREADS) as threads:
            found = threads.map(lambda name: self._fs.cat_file(f"{folder}/{name}"), names)
            proofs = [ShardProof.from_bytes(data) for data in found]
        return proof_table.merged(proof_table.proof_table(()), [proof for proof in proofs if proof])

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
    proofs = ProofStore(root, options)
    partitions = list(partitions)
    with ThreadPoolExecutor(_THREADS) as threads:
        found = threads.map(lambda partition: proofs.read(asset, partition), partitions)
        return {
            partition
            for partition, proof in zip(partitions, found, strict=True)
            if proof is not None and proof.is_damaged
        }


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
