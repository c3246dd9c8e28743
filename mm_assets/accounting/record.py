"""Outputs of the graph, and the record of each published shard.

* `OUTPUTS`: the outputs, each with its location below the storage root, format and source.
* `ShardRecord`: which inputs, code and configuration an output was made from (`fingerprint`), what came out,
  and what the file looked like then (`stat`). `mm_assets.accounting.accounts` keeps it.
* `digest_files`: the small files beside the data (scores, quarantine). Their digests are in the record, under
  ``files`` of its account: path below the storage root -> bytes and xxh3-128 of the file, or null where the
  shard has no such file. With them, missing or changed files are found.
* `stated_partitions`: the partitions that the files of a folder belong to. Names tell; a file is opened only
  where its name is too long to do so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from stat import S_ISDIR
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from mm_assets.formats.arrow_cache import digest_of
from mm_assets.formats.names import Format, format_of, partition_filename
from mm_assets.formats.parquet import SHARD, read_buffer
from mm_assets.storage.files import (
    StorageOptions,
    filesystem,
    is_remote,
    join,
    open_binary,
)
from mm_assets.storage.stamps import mark_of, parallel_map


def stated_partitions(folder: str, suffix: str, options: StorageOptions | None = None) -> list[str]:
    """Return the partitions that the files of a folder belong to, by name or content; none without a folder.

    A file that tells its partition by neither is listed under its file name.

    Args:
        folder: a folder with one file per partition.
        suffix: suffix of these files; others are left out.
        options: for the file system.
    """
    fs, path = filesystem(folder, options)
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

    def partition_inside(file: str) -> str | None:
        try:
            return _stated(fs.cat_file(file), suffix) or stems[file]
        except FileNotFoundError:  # removed since the listing
            return None

    # File names longer than 80 characters are digests: only the content tells the shard's name.
    digests = [file for file, stem in stems.items() if stem.startswith("=")]
    inside = dict(zip(digests, parallel_map(partition_inside, digests, folder), strict=True))
    found = (inside[file] if file in inside else unquote(stem) for file, stem in stems.items())
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
INDEXES = ("surveys", "published", "tars")


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
    where = remote[0] if remote else ""
    return found | dict(zip(remote, parallel_map(_remote_stat, remote, where), strict=True))


def present_stats(asset: str, records: Mapping[str, ShardRecord]) -> dict[str, Mapping[str, Any]]:
    """Return the present state of the output of each shard that has one."""
    if BY_ASSET[asset].format.is_table:
        # A shard has no file of its own in a table; its record has the commit of its rows.
        return {key: record.stat for key, record in records.items() if record.stat is not None}
    found = stat_outputs({record.uri for record in records.values() if record.uri})
    return {key: stat for key, record in records.items() if (stat := found.get(record.uri)) is not None}


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


FILES = "files"


FileDigest = Mapping[str, Any]


def digest_files(
    root: str, uris: Iterable[str], options: StorageOptions | None = None
) -> dict[str, FileDigest | None]:
    """Return the present digests of files below ``root``, by path below it; None for missing files.

    Every byte is read.
    """
    uris = list(uris)
    if is_remote(root):
        filesystem(root, options)[0].invalidate_cache()
    found = parallel_map(lambda uri: _digest(uri, options), uris, root)
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


def _digest(uri: str, options: StorageOptions | None) -> FileDigest | None:
    try:
        with open_binary(uri, options) as file:
            digest = digest_of(file)
            return {"bytes": file.tell(), "digest": digest}
    except FileNotFoundError:
        return None


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
