"""Earlier ledger: what an earlier release has left of each shard, in files of their own.

A record (``ledger/<asset>/<partition>.json``), the lost items (``ledger/items/``) and the balance
(``ledger/balance/``). `mm_assets.accounting.accounts` reads them where there is no account, and makes one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.accounting import (
    ACCOUNTS_FOLDER,
    CURATED,
    ITEMS_SCHEMA,
    LEDGER_FOLDER,
    PUBLISHED,
    ShardRecord,
    account_rows,
    account_table,
    stated_partitions,
)
from mm_assets.formats.names import partition_filename
from mm_assets.formats.parquet import UNREADABLE, UnreadableFile, read_buffer
from mm_assets.storage.files import filesystem, is_remote, join, local_path, read_bytes, remove
from mm_assets.storage.small_files import unseal
from mm_assets.storage.stamps import files_in, parallel_map

log = logging.getLogger(__name__)

_EARLIER_FORMAT = 4
_IS_ITEM = pc.field("position").is_valid()
_OF_NOTE = ("format", "partition")  # keys of a note on what was published that say whose it is
# Folders; all others are of earlier releases.
_PRESENT = (ACCOUNTS_FOLDER, "raw_shards", "index", "retired", "erasures")
_without_earlier: set[str] = set()


class EarlierLedger:
    """What an earlier release has left below a storage root: a record, lost items and a balance apart."""

    def __init__(self, root: str) -> None:
        self._root = join(root, LEDGER_FOLDER)

    @cached_property
    def exists(self) -> bool:
        """Whether there is anything of an earlier release; of a URL it is asked once."""
        if self._root not in _without_earlier:
            if any(not name.startswith(".") and name not in _PRESENT for name in self._names()):
                return True
            if is_remote(self._root):
                _without_earlier.add(self._root)
        return False

    def _names(self) -> list[str]:
        fs, path = filesystem(self._root)
        try:
            return [str(entry).rstrip("/").rpartition("/")[2] for entry in fs.ls(path, detail=False)]
        except FileNotFoundError:
            return []

    def item_folders(self, asset: str) -> list[str]:
        """Return the folder with the lost items of an asset, if there is anything of an earlier release."""
        return [join(self._root, "items", partition_filename(asset))] if self.exists else []

    def uris(self, asset: str, partition: str) -> list[str]:
        """Return the locations of what there may be of a shard."""
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
        data = read_bytes(uri)
        if data is None:
            return None
        try:
            record = ShardRecord.from_fields(unseal(data), _EARLIER_FORMAT).checked(asset, name)
        except (ValueError, TypeError) as error:
            log.warning("record %s is unreadable, the next run makes its shard again: %s", uri, error)
            return None
        published = read_bytes(self._published(name)) if asset == CURATED.asset else None
        with suppress(ValueError, LookupError):  # without it the output itself is read
            if published is not None:
                content = json.loads(unseal(published)["content"])
                text = json.dumps({name: content[name] for name in content if name not in _OF_NOTE})
                return replace(record, account={**record.account, PUBLISHED: text})
        return record

    def _published(self, name: str) -> str:
        return join(self._root, "raw_shards", f"{name}.published.json")

    def named(self, asset: str) -> list[str]:
        """Return the shards of an asset that have a record, readable or not, by the names of the files."""
        folder = join(self._root, partition_filename(asset))
        return stated_partitions(folder, ".json") if self.exists else []

    def items(self, asset: str, partition: str) -> pa.Table:
        """Return lost items in `ITEMS_SCHEMA`."""
        items = self._table("items", asset, partition, ITEMS_SCHEMA.names)
        return ITEMS_SCHEMA.empty_table() if items is None else items

    def rows(self, record: ShardRecord) -> pa.Table:
        """Return lost items and balance of a shard as the rows of an account.

        Raises:
            UnreadableFile: one of the files is damaged or missing.
        """
        asset, partition = record.asset, record.key
        balance = self._table("balance", asset, partition, ["entry", "items", "samples", "digest"])
        items = self.items(asset, partition)
        lost = record.account.get("lost", {}).get("rows", 0)
        counted = len(items.filter(pc.field("outcome").isin(["filtered", "quarantined"]) & _IS_ITEM))
        if counted != lost or (balance is None and "written" in record.account):
            raise UnreadableFile(
                f"{self._root}: {lost} lost items of {asset}, shard {partition!r}, "
                f"{counted} found, {'no' if balance is None else 'a'} balance"
            )
        if balance is None:
            return account_table(asset, partition)
        sums = {row.pop("entry"): row for row in balance.to_pylist()}
        return account_rows(asset, partition, sums, items)

    def remove(self, asset: str, partition: str) -> None:
        """Remove what an account has replaced, and local folders that are empty then."""
        for uri in self.uris(asset, partition):
            remove(uri)
            if not is_remote(uri):
                folder = Path(local_path(uri)).parent
                with suppress(OSError):  # not empty
                    folder.rmdir()
                    folder.parent.rmdir()
        if asset == CURATED.asset and self.exists:
            folder_of_index = join(self._root, "index", "sample_ids")
            for name in files_in(folder_of_index):
                remove(join(folder_of_index, name))

    def _table(self, folder: str, asset: str, partition: str, columns: Sequence[str]) -> pa.Table | None:
        name = f"{partition_filename(partition)}.parquet"
        uri = join(self._root, folder, partition_filename(asset), name)
        data = read_bytes(uri) if self.exists else None
        try:
            return None if data is None else read_buffer(data, columns)
        except UNREADABLE as error:
            raise UnreadableFile(f"{uri}: damaged: {' '.join(str(error).split())}") from error
