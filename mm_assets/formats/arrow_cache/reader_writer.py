"""Reader and writer of interleaved rows as sharded Arrow caches, and map-style datasets over such caches.

Each partition is a folder of Arrow IPC files. `ArrowCache` reads the rows of one cache, by number or in
order, for a PyTorch ``DataLoader``; `InterleavedArrowDataset` has the samples of one cache or several.
"""

from __future__ import annotations

import operator
import os
import posixpath
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.ipc as ipc
import xxhash

from mm_assets.formats import arrow_cache
from mm_assets.formats.arrow_cache import (
    METADATA_FILE,
    CacheShard,
    OpenShard,
    ShardedCacheMeta,
    ShardWriter,
    check_once,
    local_path_of,
    meta_of,
    parse_metadata,
    read_sharded_cache_meta,
    require_features,
)
from mm_assets.formats.arrow_cache.build import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_SHARD_SIZE_BYTES,
    LARGEST_BATCH,
    Generation,
    RemoteGeneration,
    sweep_folders,
)
from mm_assets.formats.arrow_cache.features import Features, decode_example
from mm_assets.formats.batching import cut_by_bytes
from mm_assets.formats.parquet import SCHEMA_VERSION, SHARD, VERSION
from mm_assets.formats.partitions import Partition
from mm_assets.formats.reader import FileSource, InterleavedReader, require_interleaved
from mm_assets.formats.reports import PartitionReport
from mm_assets.formats.writer import InterleavedWriter, Sink
from mm_assets.model.digest import BLOBS
from mm_assets.model.errors import DataError, ShardError, counted, first_and_more
from mm_assets.model.samples import document_of, sample_offsets
from mm_assets.storage.files import StorageOptions, exists, is_remote, join, local_path, open_binary, size_of

__all__ = [
    "ArrowCache",
    "InterleavedArrowCacheReader",
    "InterleavedArrowCacheWriter",
    "InterleavedArrowDataset",
    "read_shard",
]


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


class ArrowCache:
    """Map-style dataset of the examples of a cache, for a PyTorch ``DataLoader``; also iterable.

    A shard is opened when the first of its rows is requested, in the requesting process, and read once for
    its digest. So the object can be pickled, and used in forked and spawned workers.

    Args:
        cache_dir: Folder of the cache.
        features: The expected features; None accepts any.
        decode: False returns values as stored: a picture as the bytes of its file.

    Raises:
        FileNotFoundError: There is no cache.
        ValueError: The cache is damaged (the message names the file) or has other features. Reading a row
            raises it if the shard is damaged, or gone because the cache was rebuilt.
    """

    def __init__(
        self, cache_dir: str | os.PathLike[str], features: Features | None = None, *, decode: bool = True
    ) -> None:
        self.meta = read_sharded_cache_meta(cache_dir)
        if features is not None:
            require_features(self.meta, features)
        elif decode and self.meta.schema is not None:
            raise ValueError(
                f"{cache_dir}: interleaved rows; open it with InterleavedArrowDataset, or decode=False"
            )
        self._decode = decode
        self._starts = list(accumulate(self.meta.shard_row_counts, initial=0))
        self._open: dict[int, OpenShard] = {}

    @property
    def features(self) -> Features:
        return self.meta.features

    def __repr__(self) -> str:
        return repr(self.meta).replace("ShardedCacheMeta", "ArrowCache", 1)

    def __len__(self) -> int:
        return self.meta.num_rows

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = operator.index(index)
        if row < 0:
            row += len(self)
        if not 0 <= row < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        number = bisect_right(self._starts, row) - 1
        batch, row = self._shard(number).locate(row - self._starts[number])
        return self._example(batch, row)

    def take(self, indices: Iterable[int]) -> list[dict[str, Any]]:
        """Return the examples of these rows, in this order."""
        return [self[index] for index in indices]

    __getitems__ = take  # a DataLoader fetches the rows of a batch at once

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.batches():
            for row in range(batch.num_rows):
                yield self._example(batch, row)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows in order, as stored in the shards, without a copy."""
        for number in range(self.meta.num_shards):
            yield from self._shard(number).batches

    def column(self, name: str) -> Iterator[pa.Array]:
        """Yield one column of all rows as stored. Nothing else is read, so no digest is checked."""
        for number in range(self.meta.num_shards):
            for batch in self._opened(number, arrow_cache.require_size).batches:
                yield batch.column(name)

    def rows(self, start: int, stop: int) -> list[pa.RecordBatch]:
        """Return the rows from ``start`` up to ``stop``, as stored in the shards, without a copy."""
        found = []
        while start < stop:
            number = bisect_right(self._starts, start) - 1
            batch, row = self._shard(number).locate(start - self._starts[number])
            found.append(batch.slice(row, stop - start))
            start += found[-1].num_rows
        return found

    def _example(self, batch: pa.RecordBatch, row: int) -> dict[str, Any]:
        stored = {
            name: column[row].as_py() for name, column in zip(batch.schema.names, batch.columns, strict=True)
        }
        return decode_example(stored, self.features) if self._decode else stored

    def _shard(self, number: int) -> OpenShard:
        if (shard := self._open.get(number)) is None:
            shard = self._open[number] = self._opened(number, arrow_cache.check_once)
        return shard

    def _opened(self, number: int, check: Callable[[Path, CacheShard], Any]) -> OpenShard:
        path, declared = self.meta.shard_paths[number], self.meta.shards[number]
        try:
            check(path, declared)
            shard = OpenShard(path)
        except (ValueError, OSError) as error:
            if read_sharded_cache_meta(self.meta.cache_dir).shard_filenames == self.meta.shard_filenames:
                raise
            raise DataError(f"{path}: the cache was built anew since it was opened; open it again") from error
        if shard.rows != declared.rows:
            raise DataError(f"{path}: {shard.rows} rows, not {declared.rows} as {METADATA_FILE} says")
        return shard

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}, "_verified": arrow_cache.export_stamps(self.meta.shard_paths)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        arrow_cache.import_stamps(state.pop("_verified"))
        self.__dict__.update(state)


def read_shard(shard_path: str | os.PathLike[str]) -> pa.Table:
    """Return a shard as a table in mapped memory, without a copy.

    If `_metadata.json` lies beside the file and names it, the file is read once in this process for its
    digest.

    Raises:
        ValueError: A file is damaged; the message names it.
        FileNotFoundError: The file does not exist.
    """
    path = local_path_of(shard_path)
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    metadata = path.parent / METADATA_FILE
    if metadata.is_file():
        for declared in parse_metadata(path.parent, metadata.read_bytes()).shards:
            if declared.filename == path.name:
                arrow_cache.check_once(path, declared)
    shard = OpenShard(path)
    return pa.Table.from_batches(shard.batches, shard.schema)


_FOLDER = "arrow_cache"


class InterleavedArrowDataset:
    """The samples of one cache, of all caches in a folder, or of those in ``arrow_cache`` of a storage root.

    ``dataset[i]`` is ``{"sample_id": str, "items": […], "metadata": {column: value}}``. An item is
    ``{"modality", "position", "content_type", "text" or "image", "metadata"}``. The image is the bytes of its
    file, None if there are none. Items are ordered by position, text before image. The metadata of a sample
    has all passthrough columns of its partition; that of an item has only those that are not null. JSON
    columns are decoded. An item with an error (policy ``warn``) has it as ``"error"``.

    Samples are numbered partition by partition in the order of folder names, and within each as stored. The
    first use reads the column of sample ids, and `index` hashes it; nothing else is read before a sample is
    requested. Then its shard is opened in the requesting process, and read once for its digest. The object
    can be pickled, and used in forked and spawned workers.

    Raises:
        FileNotFoundError: There is no cache.
        ValueError: The argument is a URL, a cache has other data, or a file is damaged (the message names
            it).
    """

    def __init__(self, root_or_folder: str | os.PathLike[str]) -> None:
        self._caches = [
            ArrowCache(folder, decode=False) for folder in _folders(local_path_of(root_or_folder))
        ]
        for cache in self._caches:
            if cache.meta.schema is None:
                raise ValueError(
                    f"{cache.meta.cache_dir}: the examples of a generator, not interleaved rows; "
                    "open it with ArrowCache"
                )
        # By cache: the row offsets of its samples (see `sample_offsets`).
        self._offsets: list[npt.NDArray[np.int64]] | None = None
        self._first: list[int] = []  # the number of each cache's first sample
        self._by_hash: tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]] | None = None

    def __repr__(self) -> str:
        rows = counted(sum(cache.meta.num_rows for cache in self._caches), "row")
        caches = first_and_more([cache.meta.cache_dir for cache in self._caches])
        return f"<InterleavedArrowDataset of {caches}: {rows}>"

    def __len__(self) -> int:
        self._number_samples()
        return self._first[-1]

    def __getitem__(self, index: int) -> dict[str, Any]:
        number = operator.index(index)
        if number < 0:
            number += len(self)
        if not 0 <= number < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        cache, start, stop = self._place(number)
        return document_of(cache.rows(start, stop), cache.meta.schema)

    def __getitems__(self, indices: Iterable[int]) -> list[dict[str, Any]]:
        """Return the samples of these numbers, in this order: a DataLoader fetches a batch at once."""
        return [self[index] for index in indices]

    def index(self, sample_id: str) -> int:
        """Return the number of a sample.

        Raises:
            KeyError: There is no such sample.
        """
        if self._by_hash is None:
            ids = (sample_id for cache in self._caches for sample_id in self._ids(cache))
            hashes = np.fromiter(
                (xxhash.xxh3_64_intdigest(text.encode()) for text in ids), np.uint64, len(self)
            )
            order = np.argsort(hashes, kind="stable")
            self._by_hash = hashes[order], order
        hashes, order = self._by_hash
        target = np.uint64(xxhash.xxh3_64_intdigest(sample_id.encode()))
        for number in order[
            np.searchsorted(hashes, target) : np.searchsorted(hashes, target, "right")
        ].tolist():
            cache, start, _ = self._place(number)
            if cache.rows(start, start + 1)[0].column("sample_id")[0].as_py() == sample_id:
                return int(number)
        raise KeyError(sample_id)

    def partitions(self) -> list[tuple[str, int, str]]:
        """Return of each cache its folder's name, its number of samples, and a digest of its shards."""
        self._number_samples()
        counts = np.diff(self._first).tolist()
        return [
            (
                Path(cache.meta.cache_dir).name,
                count,
                xxhash.xxh3_128_hexdigest("".join(shard.digest for shard in cache.meta.shards).encode()),
            )
            for cache, count in zip(self._caches, counts, strict=True)
        ]

    def _place(self, number: int) -> tuple[ArrowCache, int, int]:
        self._number_samples()
        assert self._offsets is not None
        at = bisect_right(self._first, number) - 1
        start, stop = self._offsets[at][number - self._first[at] :][:2].tolist()
        return self._caches[at], start, stop

    def _number_samples(self) -> None:
        if self._offsets is None:
            offsets = [sample_offsets(_ids_of_rows(cache)) for cache in self._caches]
            self._first = list(accumulate((len(starts) - 1 for starts in offsets), initial=0))
            self._offsets = offsets

    def _ids(self, cache: ArrowCache) -> list[str]:
        ids = _ids_of_rows(cache)
        return ids.column(0).take(pa.array(sample_offsets(ids)[:-1])).to_pylist()  # type: ignore[no-any-return]


def _folders(given: Path) -> Sequence[Path]:
    if (given / METADATA_FILE).is_file():
        return [given]
    for folder in (given, given / _FOLDER):
        found = sorted(
            path.parent for path in folder.glob(f"*/{METADATA_FILE}") if not path.parent.name.startswith(".")
        )
        if found:
            return found
    raise FileNotFoundError(f"{given}: no cache here")


def _ids_of_rows(cache: ArrowCache) -> pa.Table:
    assert cache.meta.schema is not None
    type_ = cache.meta.schema.field("sample_id").type
    return pa.table({"sample_id": pa.chunked_array(list(cache.column("sample_id")), type_)})
