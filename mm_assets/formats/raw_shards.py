"""The raw shards a user configured: one text names paths, globs, brace lists or URLs, separated by whitespace."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from mm_assets.formats.partitions import plan_partitions, root_of_locations
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
        """Its one file, or a JSON list of several: `files_of` takes them apart again."""
        return self.files[0] if len(self.files) == 1 and not self.files[0].startswith("[") else json.dumps(self.files)


def files_of(uri: str) -> tuple[str, ...]:
    """The files of a raw shard's `RawShard.uri`; any other URI is one file."""
    return tuple(json.loads(uri)) if uri.startswith("[") else (uri,)


class RawLocations:
    """What ``MM_RAW_SHARDS`` says, and the two roots that partitions and locators are relative to.

    Roots follow from what is written there, not from what is found: a shard added later renames no partition. They are the
    deepest common folder of the local locations, and the deepest common prefix of the URLs.
    """

    def __init__(self, text: str, options: StorageOptions | None = None, excluded: str = "") -> None:
        """``excluded`` is a folder or URL prefix whose files are no raw shards: the outputs.

        Raises ``ValueError`` for a quotation mark without its partner.
        """
        self._options = options
        self._excluded = excluded.rstrip("/")
        try:
            items = shlex.split(text)
        except ValueError as error:
            raise ValueError(f"raw shards {text!r}: {error}") from error
        self._items = [item if is_remote(item) else os.path.abspath(local_path(item)) for item in items]
        self.local_root = root_of_locations([item for item in self._items if not is_remote(item)], SUFFIXES)
        self.remote_root = root_of_locations([item for item in self._items if is_remote(item)], SUFFIXES)

    def roots(self) -> list[str]:
        """Everything a locator of these shards may point into; relative ones are below the first."""
        return [root for root in (self.local_root, self.remote_root) if root]

    def files(self) -> list[str]:
        """The files themselves, absolute. Raises ``FileNotFoundError`` naming what matches nothing."""
        files = expand_paths(self._items, SUFFIXES, self._options)
        return [file for file in files if not (self._excluded and file.startswith(self._excluded + "/"))]

    def shards(self, files_per_partition: int | None = None) -> dict[str, RawShard]:
        """All raw partitions by key. The version is made of etag, or size and modification time, of each file."""
        shards = {}
        for partition in plan_partitions(self.files(), files_per_partition, options=self._options, root_of=self._root_of):
            stamps = [f"{os.path.basename(file)}:{_stamp(file, self._options)}" for file in partition.files]
            version = hashlib.sha256("\n".join(stamps).encode()).hexdigest()[:32]
            shards[partition.name] = RawShard(partition.name, partition.files, version)
        return shards

    def _root_of(self, file: str) -> str:
        return self.remote_root if is_remote(file) else self.local_root


def local_root(roots: Sequence[str]) -> str | None:
    """The root among them that is a folder of this machine: local locators are relative to it."""
    return next((root for root in roots if not is_remote(root)), None)


def _stamp(file: str, options: StorageOptions | None) -> str:
    if not is_remote(file):
        try:
            found = os.stat(local_path(file))
        except FileNotFoundError:  # a link that leads nowhere, or a file just gone: its shard fails, alone, when it is read
            return "missing"
        return f"{found.st_size}:{found.st_mtime_ns}"
    fs, path = filesystem(file, options)
    fs.invalidate_cache(os.path.dirname(path))
    info = fs.info(path)
    return str(info.get("ETag") or info.get("etag") or f"{info['size']}:{info.get('LastModified') or info.get('mtime')}")
