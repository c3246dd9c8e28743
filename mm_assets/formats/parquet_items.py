"""Parquet files with a row per item, as a source of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mm_assets.formats.batching import cut_by_bytes
from mm_assets.formats.document_parquet.unpacking import WrittenOut
from mm_assets.formats.grouping import SampleSpans, grouped
from mm_assets.formats.parquet_file import (
    ROWS_AT_ONCE,
    checked,
    column_chunks,
    open_parquet,
    read_batches,
    rows_within,
)
from mm_assets.formats.parquet_types import original_schema, restore
from mm_assets.formats.reader import FileSource
from mm_assets.formats.storage import StorageOptions, size_of
from mm_assets.interleaved.digest import BLOBS

PER_READ = (
    "use_threads",
    "use_pandas_metadata",
)  # arguments of each read; all others are of opening the file


class ParquetSource(FileSource):
    """One open Parquet file; only the requested columns are read, a few megabytes at a time.

    Args:
        uri: path or URL.
        file: the open file.
        read_kwargs: arguments of each read (``PER_READ``), and ``filters``.
        id_prefix: put in front of each sample id.
        name: the file in messages; ``uri`` by default.
        options: for the file system.
    """

    def __init__(
        self,
        uri: str,
        file: pq.ParquetFile,
        read_kwargs: Mapping[str, Any],
        id_prefix: str = "",
        name: str = "",
        options: StorageOptions | None = None,
    ) -> None:
        self._read_kwargs = {
            "use_threads": False,
            **{name: value for name, value in read_kwargs.items() if name in PER_READ},
        }
        filters = read_kwargs.get("filters")
        self._filter = None if filters is None else pq.filters_to_expression(filters)
        self._file = file
        self._options = options
        self._name = name or uri
        self._id_prefix = id_prefix
        self._blob_columns = [at for at, column in enumerate(file.schema) if column.path == BLOBS]
        super().__init__(uri, original_schema(file), file.metadata.num_rows if filters is None else None)

    def tables(self, columns: Sequence[str], max_bytes: int | None) -> Iterator[pa.Table]:
        # Selected by name again: to Parquet, "x.y" also means the child "y" of "x".
        target = pa.schema([self.schema.field(name) for name in columns])
        found = (
            restore(table.select(target.names), target) for table in self._passing(target.names, max_bytes)
        )
        return cut_by_bytes(
            (self._prefixed(table) for table in found) if self._id_prefix else found, max_bytes
        )

    def _prefixed(self, table: pa.Table) -> pa.Table:
        index = table.schema.get_field_index("sample_id")
        field = table.schema.field(index)
        ids = pc.binary_join_element_wise(self._id_prefix, table.column(index).cast(pa.string()), "")
        return table.set_column(index, field, ids.cast(field.type))

    def _passing(self, columns: list[str], max_bytes: int | None) -> Iterator[pa.Table]:
        if self._filter is None:
            yield from grouped(self._slices(columns, max_bytes), self._spans, max_bytes, self._name)
            return
        # The filter may need a column that is not read otherwise.
        slices = self._slices(self.schema.names, max_bytes)
        for table in grouped(slices, self._spans, max_bytes, self._name):
            yield table.filter(self._filter)

    @cached_property
    def _spans(self) -> SampleSpans | None:
        groups = range(self._file.num_row_groups)
        if all(self._written_out().rows(group, ["sample_id"]) is None for group in groups):
            ids = column_chunks(self.uri, self._file, self._name, "sample_id", self._options)
        else:
            ids = [chunk for table in self._slices(["sample_id"], None) for chunk in table.column(0).chunks]
        return SampleSpans.of(ids)

    def _written_out(self) -> WrittenOut:
        size = size_of(self.uri, self._options)
        return WrittenOut(self._file, size, self._name, self._reopened)

    def _reopened(self, dictionaries: list[str]) -> pq.ParquetFile:
        opening = {"metadata": self._file.metadata, "read_dictionary": dictionaries}
        return open_parquet(self.uri, self._name, self._options, opening)

    def _slices(self, columns: list[str], max_bytes: int | None) -> Iterator[pa.Table]:
        written = self._written_out()
        for group in range(self._file.num_row_groups):
            for table in self._group(group, columns, max_bytes, written.rows(group, columns)):
                written.count(table)
                yield table

    def _group(
        self, group: int, columns: list[str], max_bytes: int | None, most_rows: int | None
    ) -> Iterator[pa.Table]:
        """Yield the rows of a row group, at most ``most_rows`` at a time."""
        row_group = self._file.metadata.row_group(group)
        mean = row_group.total_byte_size // max(row_group.num_rows, 1)
        if most_rows is None and (max_bytes is None or row_group.total_byte_size <= max_bytes // 2):
            yield self._checked(
                partial(self._file.read_row_group, group, columns=columns, **self._read_kwargs)
            )
            return
        budget = max_bytes or 8 * row_group.total_byte_size
        blobs = sum(row_group.column(at).total_uncompressed_size for at in self._blob_columns)
        if (
            most_rows is None
            and blobs
            and BLOBS in columns
            and row_group.num_rows <= ROWS_AT_ONCE
            and row_group.total_byte_size - blobs <= budget // 8
        ):
            yield from self._images_separately(
                group, [name for name in columns if name != BLOBS], blobs // row_group.num_rows, budget
            )
            return
        rows = min(rows_within(budget // 8, mean), most_rows or ROWS_AT_ONCE)
        for batch in read_batches(self._file, group, columns, rows, self._name, **self._read_kwargs):
            yield pa.Table.from_batches([batch])

    def _images_separately(
        self, group: int, others: list[str], mean: int, max_bytes: int
    ) -> Iterator[pa.Table]:
        """Yield the rows of a group with large images: images a few at a time, all other columns at once."""
        table = self._checked(lambda: self._file.read_row_group(group, columns=others, **self._read_kwargs))
        field = self._file.schema_arrow.field(BLOBS)
        pieces: list[pa.Array] = []
        start = rows = filled = 0
        rows_at_once = rows_within(max_bytes // 8, mean)
        for batch in read_batches(self._file, group, [BLOBS], rows_at_once, self._name, **self._read_kwargs):
            pieces.append(batch.column(BLOBS))
            rows += batch.num_rows
            filled += pieces[-1].nbytes
            if filled > max_bytes // 4 or start + rows == table.num_rows:
                yield table.slice(start, rows).append_column(field, pa.chunked_array(pieces))
                start, rows, filled, pieces = start + rows, 0, 0, []

    def _checked(self, read: Callable[[], pa.Table]) -> pa.Table:
        return checked(read, self._name, self._file)

    def close(self) -> None:
        self._file.close(force=True)  # a remote file was opened here, not by pyarrow
