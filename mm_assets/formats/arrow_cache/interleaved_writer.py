"""Writer of interleaved rows as sharded Arrow caches: one folder of Arrow IPC files per partition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from mm_assets.formats.arrow_cache.batches import LARGEST_BATCH
from mm_assets.formats.arrow_cache.generation import Generation, sweep_folders
from mm_assets.formats.arrow_cache.metadata import METADATA_FILE, meta_of
from mm_assets.formats.arrow_cache.remote import RemoteGeneration
from mm_assets.formats.arrow_cache.shards import ShardWriter
from mm_assets.formats.arrow_cache.writer import DEFAULT_BATCH_BYTES, DEFAULT_SHARD_SIZE_BYTES
from mm_assets.formats.batching import cut_by_bytes
from mm_assets.formats.parquet_types import SCHEMA_VERSION, SHARD, VERSION
from mm_assets.formats.reports import PartitionReport
from mm_assets.formats.storage import StorageOptions, is_remote, join, local_path
from mm_assets.formats.writer import InterleavedWriter, Sink
from mm_assets.interleaved.digest import BLOBS

__all__ = ["InterleavedArrowCacheWriter"]


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
