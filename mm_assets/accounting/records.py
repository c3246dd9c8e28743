"""Records of published shards: one small JSON file each, beside the data.

A record says which inputs, code and configuration an output was made from (`fingerprint`), what came out, and
what the file looked like then (`stat`). By it a re-run knows that a shard is unchanged, without the database
of the orchestrator.
"""

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from stat import S_ISDIR
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from mm_assets.accounting.sealed_json import seal, unseal
from mm_assets.accounting.stated_partitions import stated_partitions
from mm_assets.formats.file_stamps import mark_of
from mm_assets.formats.keys import partition_filename
from mm_assets.formats.storage import filesystem, join, local_bytes, replace_file

log = logging.getLogger(__name__)

FORMAT = 4
LOST_IDS = "lost_ids"
"""In an account: ids of samples that were lost when the raw shard was read, as far as they are listed."""
INDEXES = ("surveys", "published", "sample_ids", "tars")
# Object stores answer in ~50 ms; the records of a chunk of 100 shards are read in parallel.
_REMOTE_THREADS = 16


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

    def lost_ids(self, raw_version: str) -> frozenset[str]:
        """Return the `LOST_IDS` of a raw shard in a version; none if it was read in another one."""
        is_of_version = raw_version in self.account.get("inputs", {}).values()
        return frozenset(self.account.get(LOST_IDS, ()) if is_of_version else ())


class ShardRecords:
    """Records below `root` (a folder or URL): `<root>/ledger/<asset>/<escaped partition>.json`.

    URIs below the root are stored relative to it: records may be moved or published with the data, without
    paths of this machine in them.
    """

    def __init__(self, root: str) -> None:
        self._root = root.rstrip("/") + "/"
        self._fs, path = filesystem(root)
        self._ledger = f"{path.rstrip('/')}/ledger"

    def path(self, asset: str, key: str) -> str:
        """Return the path of a record on the file system of `root`."""
        return f"{self._ledger}/{partition_filename(asset)}/{partition_filename(key)}.json"

    def uri(self, asset: str, key: str) -> str:
        """Return the location of a record."""
        return f"{self._root}ledger/{partition_filename(asset)}/{partition_filename(key)}.json"

    def read(self, asset: str, keys: Iterable[str]) -> dict[str, ShardRecord]:
        """Return the records of these shards, without those that do not exist.

        An unreadable record is logged and counts as missing: its shard is made again, which also rewrites the
        record.
        """
        paths = {self.path(asset, key): key for key in keys}
        return self._read(asset, paths, lambda record: record.key)

    def by_file_name(self, asset: str, names: Iterable[str]) -> dict[str, ShardRecord]:
        """Return the records of shards by the names of their files (`partition_filename`), else as `read`."""
        paths = {f"{self._ledger}/{partition_filename(asset)}/{name}.json": name for name in names}
        return self._read(asset, paths, lambda record: partition_filename(record.key))

    def _read(
        self, asset: str, names: Mapping[str, str], name_of: Callable[[ShardRecord], str]
    ) -> dict[str, ShardRecord]:
        """Return the records at some paths by name; the record itself must have that name."""
        found: dict[str, ShardRecord] = {}
        for path, data in self._contents(names):
            try:
                record = self._parse(data)
                if (record.asset, name_of(record)) != (asset, names[path]):
                    raise ValueError(f"belongs to shard {record.key!r} of {record.asset}")
                found[names[path]] = record
            except (ValueError, TypeError) as error:
                log.warning("record %s is unreadable, the next run makes its shard again: %s", path, error)
        return found

    def keys(self, asset: str) -> list[str]:
        """Return the shards of an asset that have a record, sorted."""
        folder = f"{self._ledger}/{partition_filename(asset)}"
        if not self._fs.isdir(folder):
            return []
        self._fs.invalidate_cache(folder)
        paths = [path for path in self._fs.ls(folder, detail=False) if path.endswith(".json")]
        keys = []
        for path, data in self._contents(paths):
            try:
                keys.append(str(unseal(data)["key"]))
            except (ValueError, TypeError, LookupError) as error:
                log.warning("record %s is unreadable, the next run makes its shard again: %s", path, error)
        return sorted(keys)

    def named(self, asset: str) -> list[str]:
        """Return the shards of an asset that have a record, readable or not, by the names of the files."""
        return stated_partitions(f"{self._root}ledger/{partition_filename(asset)}", ".json")

    def write(self, record: ShardRecord) -> None:
        """Publish a record in one step: readers see the old one or the new one."""
        path = self.path(record.asset, record.key)
        fields = {"format": FORMAT, **vars(record), "uri": self.relative(record.uri)}
        data = seal(fields)
        if not isinstance(self._fs, LocalFileSystem):
            self._fs.pipe_file(path, data)
            return
        # Not synced to disk: if a power cut leaves an empty record, its shard is made again.
        replace_file(path, data)

    def relative(self, uri: str) -> str:
        """Return a URI below the root as "./…"; any other, and an empty one, unchanged."""
        return f"./{uri.removeprefix(self._root)}" if uri.startswith(self._root) else uri

    def _parse(self, data: bytes) -> ShardRecord:
        fields = unseal(data)
        if fields.pop("format", None) != FORMAT:
            raise ValueError(f"not of format {FORMAT}")
        record = ShardRecord(**fields)
        inside = record.uri.startswith("./")
        return replace(record, uri=self._root + record.uri.removeprefix("./")) if inside else record

    def _contents(self, paths: Iterable[str]) -> list[tuple[str, bytes]]:
        if isinstance(self._fs, LocalFileSystem):
            return [(path, data) for path in paths if (data := local_bytes(path)) is not None]
        return [(path, data) for path, data in _at_once(paths, self._remote_bytes) if data is not None]

    def _remote_bytes(self, path: str) -> bytes | None:
        try:
            return bytes(self._fs.cat_file(path))
        except FileNotFoundError:
            return None


def index_folder(root: str, kind: str) -> str:
    """Return where a storage root has the `FileIndex` of one of `INDEXES`."""
    return join(root, "ledger", "index", kind)


def account_folders(root: str, asset: str) -> list[str]:
    """Return the local folders with an asset's accounts, where dead processes may have left files."""
    ledger, name = os.path.join(root, "ledger"), partition_filename(asset)
    below = [name, f"items/{name}", f"balance/{name}", "raw_shards", "sample_ids"]
    return [
        *(index_folder(root, kind) for kind in INDEXES),
        *(os.path.join(ledger, folder) for folder in below),
        os.path.join(root, "proof"),
        os.path.join(root, "proof", name),
    ]


def stat_outputs(uris: Iterable[str]) -> dict[str, dict[str, Any] | None]:
    """Return the state of each output: size and modification time or etag; None if it does not exist.

    For a folder it is the state of each file in it.
    """
    found: dict[str, dict[str, Any] | None] = {}
    remote: list[str] = []
    for uri in uris:
        fs, path = filesystem(uri)
        if isinstance(fs, LocalFileSystem):
            found[uri] = _local_stat(path)
        else:
            fs.invalidate_cache()
            remote.append(uri)
    return found | dict(_at_once(remote, _remote_stat))


def _at_once(items: Iterable[str], ask: Callable[[str], Any]) -> list[tuple[str, Any]]:
    items = list(items)
    with ThreadPoolExecutor(_REMOTE_THREADS) as threads:
        return list(zip(items, threads.map(ask, items), strict=True))


def _local_stat(path: str) -> dict[str, Any] | None:
    try:
        stat = os.stat(path)
    except FileNotFoundError:
        return None
    if S_ISDIR(stat.st_mode):
        files = sorted(
            (entry.name, entry.stat())
            for entry in os.scandir(path)
            if entry.is_file() and not entry.name.startswith(".")
        )
        return {
            "files": {name: {"size": found.st_size, "mtime_ns": found.st_mtime_ns} for name, found in files}
        }
    return {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def _remote_stat(uri: str) -> dict[str, Any] | None:
    fs: AbstractFileSystem
    fs, path = filesystem(uri)
    try:
        info = fs.info(path)
    except FileNotFoundError:
        return None
    if info.get("type") == "directory":
        return {
            "files": {
                str(file["name"]).rpartition("/")[2]: _mark(file)
                for file in fs.ls(path, detail=True)
                if file["type"] == "file"
            }
        }
    return _mark(info)


def _mark(info: Mapping[str, Any]) -> dict[str, Any]:
    return {"size": info.get("size"), "mark": str(mark_of(info))}
