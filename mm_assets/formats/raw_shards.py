"""The raw shards a user configured: one text names paths, globs, brace lists or URLs, separated by whitespace."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

from mm_assets.formats.partitions import common_root, plan_partitions
from mm_assets.formats.storage import StorageOptions, expand_paths, filesystem, is_remote, local_path

SUFFIXES = (".tar", ".tar.gz", ".tgz")


@dataclass(frozen=True)
class RawShard:
    """One partition of raw input: its files, and a version that changes whenever a file does."""

    key: str
    files: tuple[str, ...]
    version: str

    @property
    def uri(self) -> str:
        return self.files[0]


def raw_files(text: str, options: StorageOptions | None = None) -> list[str]:
    """The files that ``MM_RAW_SHARDS`` names, absolute. Raises ``FileNotFoundError`` naming what matches nothing."""
    items = [item if is_remote(item) else os.path.abspath(local_path(item)) for item in text.split()]
    return expand_paths(items, SUFFIXES, options)


def raw_root(text: str, options: StorageOptions | None = None) -> str:
    """The folder or URL prefix that holds all raw files; empty when they have none in common."""
    return common_root(raw_files(text, options))


def list_raw_shards(
    text: str, files_per_partition: int | None = None, options: StorageOptions | None = None
) -> dict[str, RawShard]:
    """All raw partitions by key. The version is made of etag, or size and modification time, of each file."""
    shards = {}
    for partition in plan_partitions(raw_files(text, options), files_per_partition, options=options):
        stamps = [f"{os.path.basename(file)}:{_stamp(file, options)}" for file in partition.files]
        version = hashlib.sha256("\n".join(stamps).encode()).hexdigest()[:32]
        shards[partition.name] = RawShard(partition.name, partition.files, version)
    return shards


def _stamp(file: str, options: StorageOptions | None) -> str:
    if not is_remote(file):
        found = os.stat(local_path(file))
        return f"{found.st_size}:{found.st_mtime_ns}"
    fs, path = filesystem(file, options)
    fs.invalidate_cache(os.path.dirname(path))
    info = fs.info(path)
    return str(info.get("ETag") or info.get("etag") or f"{info['size']}:{info.get('LastModified') or info.get('mtime')}")
