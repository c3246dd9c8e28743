"""Which shards of an output should be there, by everything that the storage knows of them but the output
itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from mm_assets.accounting.outputs import BY_ASSET, made_from
from mm_assets.accounting.records import ShardRecords
from mm_assets.formats.keys import partition_filename
from mm_assets.formats.listing import expand_paths
from mm_assets.formats.storage import StorageOptions, filesystem, join

# Below the root, each with a folder an asset and a file a shard; and what a file there tells.
_TRACES = {
    "ledger": (".json", "its record"),
    "ledger/balance": (".parquet", "its balance in the ledger"),
    "ledger/items": (".parquet", "its items in the ledger"),
    "proof": (".json", "an earlier proof"),
}


class Evidence:
    """What lies below a storage root (folder or URL) and tells of shards."""

    def __init__(self, root: str, options: StorageOptions | None = None) -> None:
        self._root = root
        self._options = options

    def of(self, asset: str) -> dict[str, list[str]]:
        """The shards of an asset that were landed once, by what tells so: records, ledger, proofs, and
        records of what was made of them.

        A file whose name does not say which shard it is of, and whose content cannot be read, stands under
        its name.
        """
        found: dict[str, list[str]] = {}
        for folder, (suffix, what) in _TRACES.items():
            for partition in self._partitions(join(self._root, folder, partition_filename(asset)), suffix):
                found.setdefault(partition, []).append(what)
        for output in made_from(asset):
            for partition in self._partitions(
                join(self._root, "ledger", partition_filename(output.asset)), ".json"
            ):
                found.setdefault(partition, []).append(f"the record of {output.asset}")
        return found

    def unmade(self, asset: str) -> list[str]:
        """Shards that landed in what the asset is made from and of which nothing tells in the asset itself:
        they were never made.
        """
        source = BY_ASSET[asset].source
        if source is None:
            return []
        return sorted(set(ShardRecords(self._root).keys(source)).difference(self.of(asset)))

    def unknown_files(self, asset: str, known: Iterable[str]) -> list[str]:
        """Files in the folder of an output, as readers of the folder would find them, that are of none of
        these shards.

        Paths are relative to the root. A table has no files of single shards.
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

    def _partitions(self, folder: str, suffix: str) -> list[str]:
        fs, path = filesystem(folder, self._options)
        fs.invalidate_cache()
        try:
            files = [str(file) for file in fs.ls(path, detail=False)]
        except FileNotFoundError:
            return []
        names = {file: file.rpartition("/")[2] for file in files}
        stems = {
            file: name.removesuffix(suffix)
            for file, name in names.items()
            if name.endswith(suffix) and not name.startswith(".")
        }
        # Names of more than 80 characters are digests: the file alone says which shard it is of.
        return [
            _stated(fs.cat_file(file), suffix) or stem if stem.startswith("=") else unquote(stem)
            for file, stem in stems.items()
        ]


def _stated(data: bytes, suffix: str) -> str | None:
    """The shard that a record, a proof or a table of the ledger says it is of; None for one that cannot be
    read.
    """
    try:
        if suffix == ".parquet":
            return str(pq.read_table(pa.BufferReader(data), columns=["partition"]).column(0)[0].as_py())
        fields = json.loads(data)
        return str(fields.get("key") or fields["partition"])
    except (ValueError, LookupError, AttributeError, OSError, RecursionError):
        return None
