"""Interleaved Parquet: one row per item, row groups of whole samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mm_assets.formats.cutting import cut_by_bytes
from mm_assets.formats.error_lines import cause_line
from mm_assets.formats.parquet_types import original_schema, refused_column, restore, stored_schema
from mm_assets.formats.partitions import Partition
from mm_assets.formats.reader import FileSource, InterleavedReader, ShardError
from mm_assets.formats.storage import StagedFile, StorageOptions, filesystem, is_remote, local_path
from mm_assets.formats.writer import InterleavedWriter, Sink
from mm_assets.interleaved.digest import BLOBS

ROW_GROUP_BYTES = 16 << 20  # one sample by id costs one row group; 16 MB balances that against scan speed
_READ_BUFFER = 1 << 16  # the processor's cache holds it until it is copied into its place
_ROWS_AT_ONCE = 4096
_PER_READ = ("use_threads", "use_pandas_metadata")


class InterleavedParquetReader(InterleavedReader):
    """Reads interleaved Parquet files; see `InterleavedReader` for the arguments."""

    suffixes = (".parquet",)

    def _open_file(self, uri: str, partition: Partition) -> FileSource:
        return ParquetSource(uri, self.storage_options, self.read_kwargs)

    # read_kwargs are those of `pyarrow.parquet.read_table`: how the file is opened (memory_map, buffer_size, pre_buffer …),
    # use_threads, and filters (rows that do not pass are left out, also inside a sample).


class ParquetSource(FileSource):
    """One Parquet file; only the columns asked for are read, a few megabytes at a time."""

    def __init__(self, uri: str, options: StorageOptions | None, read_kwargs: dict[str, Any]) -> None:
        self._read_kwargs = {name: value for name, value in read_kwargs.items() if name in _PER_READ}
        self._read_kwargs.setdefault("use_threads", False)
        filters = read_kwargs.get("filters")
        self._filter = None if filters is None else pq.filters_to_expression(filters)
        opening = {name: value for name, value in read_kwargs.items() if name not in (*_PER_READ, "filters")}
        try:
            self._file = _open(uri, options, opening)
        except TypeError as error:
            raise TypeError(f"read_kwargs: {error}") from error
        except (pa.ArrowInvalid, OSError) as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise ShardError(f"{uri}: not a readable Parquet file: {cause_line(error, uri)}") from error
        schema = original_schema(self._file)
        missing = [name for name in ("sample_id", "position", "modality") if name not in schema.names]
        if missing:
            self._file.close()
            raise ShardError(f"{uri}: not interleaved data, column {missing[0]!r} is missing")
        self._blob_columns = [at for at, column in enumerate(self._file.schema) if column.path == BLOBS]
        super().__init__(uri, schema, self._file.metadata.num_rows if filters is None else None)

    def tables(self, columns: Sequence[str], max_bytes: int | None) -> Iterator[pa.Table]:
        # Selected by name again: Parquet takes "x.y" for a part of "x" as well.
        target = pa.schema([self.schema.field(name) for name in columns])
        return cut_by_bytes((restore(table.select(target.names), target) for table in self._passing(target.names, max_bytes)), max_bytes)

    def _passing(self, columns: list[str], max_bytes: int | None) -> Iterator[pa.Table]:
        if self._filter is None:
            yield from self._slices(columns, max_bytes)
            return
        for table in self._slices(self.schema.names, max_bytes):  # the filter may ask for a column that is not read otherwise
            yield table.filter(self._filter)

    def _slices(self, columns: list[str], max_bytes: int | None) -> Iterator[pa.Table]:
        metadata = self._file.metadata
        for group in range(metadata.num_row_groups):
            facts = metadata.row_group(group)
            if max_bytes is None or facts.total_byte_size <= max_bytes // 2:
                yield self._checked(lambda g=group: self._file.read_row_group(g, columns=columns, **self._read_kwargs))
                continue
            blobs = sum(facts.column(at).total_uncompressed_size for at in self._blob_columns)
            if blobs and BLOBS in columns and facts.num_rows <= _ROWS_AT_ONCE and facts.total_byte_size - blobs <= max_bytes // 8:
                yield from self._apart(group, [name for name in columns if name != BLOBS], blobs // facts.num_rows, max_bytes)
                continue
            for batch in self._batches(group, columns, facts.total_byte_size // max(facts.num_rows, 1), max_bytes):
                yield pa.Table.from_batches([batch])

    def _apart(self, group: int, others: list[str], mean: int, max_bytes: int) -> Iterator[pa.Table]:
        """The rows of a group of which only the images are large: these a few at a time, all other columns at once."""
        table = self._checked(lambda: self._file.read_row_group(group, columns=others, **self._read_kwargs))
        field = self._file.schema_arrow.field(BLOBS)
        pieces: list[pa.Array] = []
        start = rows = filled = 0
        for batch in self._batches(group, [BLOBS], mean, max_bytes):
            pieces.append(batch.column(BLOBS))
            rows += batch.num_rows
            filled += pieces[-1].nbytes
            if filled > max_bytes // 4 or start + rows == table.num_rows:
                yield table.slice(start, rows).append_column(field, pa.chunked_array(pieces))
                start, rows, filled, pieces = start + rows, 0, 0, []

    def _batches(self, group: int, columns: list[str], mean: int, max_bytes: int) -> Iterator[pa.RecordBatch]:
        rows = min(max(max_bytes // 8 // max(mean, 1), 1), _ROWS_AT_ONCE)
        rows = 1 << (rows.bit_length() - 1)  # our pages have 16 rows: a batch with rows of two pages is copied once more
        batches = self._file.iter_batches(rows, row_groups=[group], columns=columns, **self._read_kwargs)
        while (batch := self._checked(lambda: next(batches, None))) is not None:
            yield batch

    def _checked(self, read: Any) -> Any:
        try:
            return read()
        except (pa.ArrowInvalid, OSError) as error:
            raise ShardError(f"{self.uri}: damaged Parquet data: {error}") from error

    def close(self) -> None:
        self._file.close(force=True)  # a remote file was opened here, not by pyarrow


def _open(uri: str, options: StorageOptions | None, opening: dict[str, Any]) -> pq.ParquetFile:
    if not is_remote(uri):
        return pq.ParquetFile(local_path(uri), **{"pre_buffer": False, "buffer_size": _READ_BUFFER, **opening})
    fs, path = filesystem(uri, options)
    source = pa.PythonFile(fs.open(path, "rb"), mode="r")
    return pq.ParquetFile(source, **{"pre_buffer": True, **opening})


class InterleavedParquetWriter(InterleavedWriter):
    """Writes interleaved Parquet: image bytes plain, text compressed, row groups bounded by bytes.

    ``path`` is a folder (one file per partition) or, ending in ``.parquet``, one file. See `InterleavedWriter`.
    """

    suffix = ".parquet"

    def _open_sink(self, partition: str, schema: pa.Schema, files: tuple[str, ...]) -> Sink:
        return ParquetSink(self.uri_of(partition), schema, partition, self.storage_options)


class ParquetSink(Sink):
    """One Parquet file under a temporary name until published."""

    def __init__(self, uri: str, schema: pa.Schema, partition: str, options: StorageOptions | None) -> None:
        self._schema = schema = stored_schema(schema, partition)
        self._staged = StagedFile(uri, options)
        try:
            self._writer = _open_writer(self._staged.path, schema)
        except BaseException as error:
            self._staged.discard()
            if isinstance(error, pa.ArrowNotImplementedError):
                raise ValueError(f"{refused_column(schema)}{error}") from error
            raise

    def write(self, tables: Iterator[pa.Table]) -> None:
        for group in cut_by_bytes(tables, ROW_GROUP_BYTES):
            self._writer.write_table(group.cast(self._schema), row_group_size=group.num_rows)

    def publish(self) -> tuple[str | None, int]:
        self._writer.close()
        return self._staged.uri, self._staged.publish()

    def discard(self) -> None:
        with suppress(Exception):  # a full disk refuses the footer too; what counts is the error that led here
            self._writer.close()
        self._staged.discard()


def _open_writer(path: str, schema: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        path,
        schema,
        version="2.6",
        compression={name: "none" if name == "binary_content" else "zstd" for name in _leaves(schema)},
        use_dictionary=[name for name in ("modality", "content_type") if name in schema.names],
        write_statistics=["sample_id", "position", "modality"],
        # Pages are cut between write batches only: 1,024 image rows in one page cost every reader that much memory.
        write_batch_size=16,
        bloom_filter_options={"sample_id": {"ndv": 4096, "fpp": 0.01}},
    )


def _leaves(schema: pa.Schema) -> list[str]:
    """Column paths as Parquet names them; compression can be set per top-level name only for flat columns."""
    return [leaf for field in schema for leaf in _leaf_paths(field.name, field.type)]


def _leaf_paths(path: str, type_: pa.DataType) -> list[str]:
    if pa.types.is_struct(type_):
        return [leaf for child in type_ for leaf in _leaf_paths(f"{path}.{child.name}", child.type)]
    if pa.types.is_map(type_):
        entries = f"{path}.key_value"
        return [f"{entries}.key", *_leaf_paths(f"{entries}.value", type_.item_type)]
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return _leaf_paths(f"{path}.list.element", type_.value_type)
    if isinstance(type_, pa.BaseExtensionType):
        return _leaf_paths(path, type_.storage_type)
    return [path]
