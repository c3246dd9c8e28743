"""Evidence that shards of an output were published, from everything in storage but the output itself."""

from __future__ import annotations

from collections.abc import Iterable

from mm_assets.accounting.outputs import BY_ASSET, made_from
from mm_assets.accounting.records import ShardRecords
from mm_assets.accounting.stated_partitions import stated_partitions
from mm_assets.formats.keys import partition_filename
from mm_assets.formats.listing import expand_paths
from mm_assets.formats.storage import StorageOptions, join

# Folders below the root, each with a folder per asset and a file per shard: suffix, and name of the evidence.
_TRACES = {
    "ledger": (".json", "its record"),
    "ledger/balance": (".parquet", "its balance in the ledger"),
    "ledger/items": (".parquet", "its items in the ledger"),
    "proof": (".json", "an earlier proof"),
}


class Evidence:
    """Traces of shards below a storage root (folder or URL)."""

    def __init__(self, root: str, options: StorageOptions | None = None) -> None:
        self._root = root
        self._options = options

    def of(self, asset: str) -> dict[str, list[str]]:
        """Return the shards of an asset that were published once, with the kinds of evidence for each.

        Evidence are records, ledger, proofs, and records of outputs made from the asset. A file that tells
        its shard neither by name nor by content is listed under its file name.
        """
        found: dict[str, list[str]] = {}
        for folder, (suffix, what) in _TRACES.items():
            below = join(self._root, folder, partition_filename(asset))
            for partition in stated_partitions(below, suffix, self._options):
                found.setdefault(partition, []).append(what)
        for output in made_from(asset):
            records = join(self._root, "ledger", partition_filename(output.asset))
            for partition in stated_partitions(records, ".json", self._options):
                found.setdefault(partition, []).append(f"the record of {output.asset}")
        return found

    def unmade(self, asset: str) -> list[str]:
        """Return shards that were published in the source of an asset, but never made in the asset itself."""
        source = BY_ASSET[asset].source
        if source is None:
            return []
        return sorted(set(ShardRecords(self._root).keys(source)).difference(self.of(asset)))

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
