"""Reader of interleaved rows from sharded Arrow caches."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc

from mm_assets.formats.arrow_cache import verified
from mm_assets.formats.arrow_cache.metadata import (
    METADATA_FILE,
    ShardedCacheMeta,
    parse_metadata,
    read_sharded_cache_meta,
)
from mm_assets.formats.arrow_cache.shards import CacheShard
from mm_assets.formats.batching import cut_by_bytes
from mm_assets.formats.partitions import Partition
from mm_assets.formats.reader import FileSource, InterleavedReader
from mm_assets.formats.storage import (
    StorageOptions,
    exists,
    is_remote,
    join,
    local_path,
    open_binary,
    size_of,
)
from mm_assets.interleaved.digest import BLOBS
from mm_assets.interleaved.errors import ShardError
from mm_assets.interleaved.schema import REQUIRED_COLUMNS

__all__ = ["InterleavedArrowCacheReader"]


class InterleavedArrowCacheReader(InterleavedReader):
    """Reader of caches of interleaved rows; see `InterleavedReader` for the arguments.

    The files to pass are the `_metadata.json` of the caches.
    """

    suffixes = (f"/{METADATA_FILE}",)

    def __init__(self, file_paths: Any, **arguments: Any) -> None:
        super().__init__(file_paths, **arguments)
        if self.blocksize is not None:
            raise ValueError("blocksize: a cache has many files; give files_per_partition")
        if self.read_kwargs:
            raise TypeError(f"read_kwargs: a cache takes none, not {', '.join(self.read_kwargs)}")

    def root(self) -> str:
        root = super().root()
        return (
            posixpath.dirname(root)
            if root and exists(join(root, METADATA_FILE), self.storage_options)
            else root
        )

    def _open_file(self, uri: str, partition: Partition) -> FileSource:
        return ArrowCacheSource(uri, self.storage_options)


class ArrowCacheSource(FileSource):
    """One cache. Only the requested columns are read, one record batch at a time.

    A local shard is checked by its digest before its images are read.
    """

    def __init__(self, uri: str, options: StorageOptions | None) -> None:
        self._folder = uri.rpartition("/")[0] if uri.endswith(f"/{METADATA_FILE}") else uri
        self._options = options
        try:
            self._meta = self._read_metadata()
        except FileNotFoundError:
            raise
        except ValueError as error:
            raise ShardError(str(error)) from error
        if self._meta.schema is None:
            raise ShardError(f"{self._folder}: not interleaved data, but the examples of a generator")
        missing = [name for name in REQUIRED_COLUMNS if name not in self._meta.schema.names]
        if missing:
            raise ShardError(f"{self._folder}: not interleaved data, column {missing[0]!r} is missing")
        super().__init__(uri, self._meta.schema, self._meta.num_rows)

    def _read_metadata(self) -> ShardedCacheMeta:
        if not is_remote(self._folder):
            return read_sharded_cache_meta(local_path(self._folder))
        with open_binary(join(self._folder, METADATA_FILE), self._options) as file:
            return parse_metadata(Path(self._folder), file.read())

    def tables(self, columns: Sequence[str], max_bytes: int | None) -> Iterator[pa.Table]:
        return cut_by_bytes(self._batches(columns), max_bytes)

    def _batches(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        column_indices = [at for at, name in enumerate(self.schema.names) if name in set(columns)]
        for shard in self._meta.shards:
            try:
                yield from self._shard(shard, column_indices)
            except (ValueError, pa.ArrowException) as error:
                raise ShardError(f"{join(self._folder, shard.filename)}: damaged: {error}") from error

    def _shard(self, shard: CacheShard, column_indices: list[int]) -> Iterator[pa.Table]:
        uri = join(self._folder, shard.filename)
        if is_remote(uri):
            if (size := size_of(uri, self._options)) != shard.size:
                raise ValueError(f"{size} bytes, not {shard.size}")
        elif self.schema.get_field_index(BLOBS) in column_indices:
            verified.check_once(Path(local_path(uri)), shard)
        with open_binary(uri, self._options) if is_remote(uri) else pa.OSFile(local_path(uri)) as file:
            # Not mapped: mapped pages count as memory of the process, and here each row is read only once.
            reader = ipc.open_file(
                file, options=ipc.IpcReadOptions(use_threads=False, included_fields=column_indices)
            )
            if reader.schema != pa.schema([self.schema.field(at) for at in column_indices]):
                raise ValueError(f"its columns are not those that {METADATA_FILE} says")
            for index in range(reader.num_record_batches):
                yield pa.Table.from_batches([reader.get_batch(index)])

    def close(self) -> None:
        """Do nothing: no file stays open."""
