"""Reader and writer of interleaved rows as sharded Arrow caches.

Each partition is a folder of Arrow IPC files.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from mm_assets.formats.arrow_cache import (
    METADATA_FILE,
    CacheShard,
    ShardedCacheMeta,
    ShardWriter,
    check_once,
    meta_of,
    parse_metadata,
    read_sharded_cache_meta,
)
from mm_assets.formats.arrow_cache.build import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_SHARD_SIZE_BYTES,
    LARGEST_BATCH,
    Generation,
    RemoteGeneration,
    sweep_folders,
)
from mm_assets.formats.batching import cut_by_bytes
from mm_assets.formats.parquet import SCHEMA_VERSION, SHARD, VERSION
from mm_assets.formats.partitions import Partition
from mm_assets.formats.reader import FileSource, InterleavedReader, require_interleaved
from mm_assets.formats.reports import PartitionReport
from mm_assets.formats.writer import InterleavedWriter, Sink
from mm_assets.model.digest import BLOBS
from mm_assets.model.errors import ShardError
from mm_assets.storage.files import StorageOptions, exists, is_remote, join, local_path, open_binary, size_of

__all__ = ["InterleavedArrowCacheReader", "InterleavedArrowCacheWriter"]


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
        require_interleaved(self._meta.schema, self._folder)
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
            check_once(Path(local_path(uri)), shard)
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


class InterleavedArrowCacheWriter(InterleavedWriter):
    """Writer of uncompressed Arrow IPC shards for memory-mapped reads, with record batches of whole samples.

    ``path`` is a folder. Each partition becomes a folder in it: a cache with shards and `_metadata.json`. See
    `InterleavedWriter`.
    """

    suffix = ""

    @property
    def is_single_file(self) -> bool:
        return False

    def _open_sink(self, partition: str, schema: pa.Schema, files: tuple[str, ...]) -> Sink:
        return ArrowCacheSink(self.uri_of(partition), schema, partition, self.storage_options)

    def file_of(self, partition: str) -> str:
        return join(self.uri_of(partition), METADATA_FILE)

    def finish(self, reports: Sequence[PartitionReport]) -> None:
        """Remove the leftovers of killed builders beside the caches."""
        if not is_remote(self.path) and Path(local_path(self.path)).is_dir():
            sweep_folders(Path(local_path(self.path)))


class ArrowCacheSink(Sink):
    """One cache under construction."""

    def __init__(self, uri: str, schema: pa.Schema, partition: str, options: StorageOptions | None) -> None:
        self._uri = uri
        self._schema = schema.with_metadata(
            {**(schema.metadata or {}), VERSION: SCHEMA_VERSION, SHARD: partition}
        )
        self._generation = (
            RemoteGeneration(uri, options)
            if is_remote(uri)
            else Generation(Path(local_path(uri)), sweeps_beside=False)
        )
        self._shards = ShardWriter(self._generation.folder, self._schema, DEFAULT_SHARD_SIZE_BYTES)

    def write(self, tables: Iterator[pa.Table]) -> None:
        for group in cut_by_bytes(tables, DEFAULT_BATCH_BYTES):
            self._write(group)
            del group  # before the next one is made
        self._shards.finish()

    def _write(self, group: pa.Table) -> None:
        for batch in _compact(group, self._schema).to_batches():
            self._shards.write(batch)

    def publish(self) -> tuple[str | None, int]:
        meta = meta_of(Path(local_path(self._uri)), self._schema, self._shards.shards)
        try:
            self._generation.publish(meta, DEFAULT_SHARD_SIZE_BYTES)
        finally:
            self._generation.clear()
        return self._uri, sum(meta.shard_sizes)

    def discard(self) -> None:
        self._shards.abandon()
        self._generation.clear()


def _compact(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows as one chunk per column, unless a column is too long for that."""
    rows = pa.array(np.arange(table.num_rows))
    columns = [
        column if name == BLOBS else _zero_nulls(column, rows)
        for name, column in zip(table.column_names, table.columns, strict=True)
    ]
    # Not by a cast, which breaks lists of nulls (Arrow 26).
    return pa.Table.from_arrays(columns, schema=schema).combine_chunks()


def _zero_nulls(column: pa.ChunkedArray, rows: pa.Array) -> pa.ChunkedArray:
    """Return a copy that has zeros under nulls.

    Parquet readers leave uninitialised memory there, which must not be published.
    """
    if column.nbytes > LARGEST_BATCH:
        return column
    try:
        return column.take(rows)
    except pa.ArrowNotImplementedError:
        return column
