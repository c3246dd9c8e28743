"""Canonical reader of interleaved Parquet, with `pyarrow.parquet` alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pyarrow as pa
import pyarrow.parquet as pq

from mm_assets.accounting.canonical.parts import RowPart, blob_index, naming_file
from mm_assets.formats.document_parquet.layout import is_interleaved
from mm_assets.formats.document_parquet.unpacking import WrittenOut
from mm_assets.formats.parquet_file import open_checked, unreadable_dictionary
from mm_assets.formats.parquet_types import original_schema, restore
from mm_assets.formats.storage import StorageOptions, is_remote, open_binary, regular_file, size_of
from mm_assets.interleaved.digest import BLOBS
from mm_assets.interleaved.errors import ShardError

_BYTES_AT_ONCE = 8 << 20
# Fits the processor's cache between decoding and digest; also about one page of our files.
_BLOB_BYTES_AT_ONCE = 2 << 20
_ROWS_AT_ONCE = 4096
_READ_BUFFER = 1 << 18


def parquet_parts(
    uri: str,
    raw: Callable[[], Iterator[RowPart]],
    has_prefixes: bool = False,
    options: StorageOptions | None = None,
) -> Iterator[RowPart]:
    """Yield the rows of one file, in its types; for a file with a row per document what ``raw`` yields.

    Args:
        uri: the file.
        raw: the reader for files with a row per document.
        has_prefixes: prefixes are put in front of sample ids, which pyarrow knows nothing of: ``raw`` is used
            too.
        options: for the file system.
    """
    with ExitStack() as stack:
        source = stack.enter_context(open_binary(uri, options)) if is_remote(uri) else regular_file(uri)
        with naming_file(uri):
            file = stack.enter_context(
                open_checked(source, pre_buffer=is_remote(uri), buffer_size=_READ_BUFFER)
            )
            schema = original_schema(file)
        if not is_interleaved(schema) or has_prefixes:
            yield from raw()
            return
        with naming_file(uri):
            yield RowPart(pa.Table.from_batches([], schema))
            written = WrittenOut(
                file,
                size_of(uri, options),
                uri,
                lambda names: open_checked(source, metadata=file.metadata, read_dictionary=names),
            )
            try:
                for group in range(file.num_row_groups):
                    yield from _row_group(file, group, schema, uri, written)
            except pa.ArrowInvalid as error:
                raise ShardError(unreadable_dictionary(file, error) or error) from error


def _row_group(
    file: pq.ParquetFile, group: int, schema: pa.Schema, uri: str, written: WrittenOut
) -> Iterator[RowPart]:
    row_group = file.metadata.row_group(group)
    columns = [row_group.column(i) for i in range(row_group.num_columns)]
    blob_bytes = sum(column.total_uncompressed_size for column in columns if column.path_in_schema == BLOBS)
    index = blob_index(schema)
    most_rows = written.rows(group, schema.names)
    if (
        index < 0
        or most_rows is not None
        or row_group.num_rows > _ROWS_AT_ONCE
        or row_group.total_byte_size - blob_bytes > _BYTES_AT_ONCE
    ):
        rows = _rows_in(_BYTES_AT_ONCE, row_group.total_byte_size, row_group.num_rows)
        rows = min(rows, most_rows or rows)
        for batch in file.iter_batches(rows, row_groups=[group], use_threads=False):
            written.count(batch)
            yield RowPart(restore(pa.Table.from_batches([batch]), schema))
        return
    others = schema.remove(index)
    table = restore(file.read_row_group(group, columns=others.names, use_threads=False), others)
    written.count(table)
    rows = _rows_in(_BLOB_BYTES_AT_ONCE, blob_bytes, row_group.num_rows)
    # Our pages have 16 rows, and a batch with rows of two pages is copied once more.
    rows = 1 << (rows.bit_length() - 1)
    yield RowPart(table, _blobs(file, group, rows, schema.field(index).type, uri), index, schema.field(index))


def _blobs(file: pq.ParquetFile, group: int, rows: int, type_: pa.DataType, uri: str) -> Iterator[pa.Array]:
    with naming_file(uri):  # a generator: errors occur while the caller iterates
        for batch in file.iter_batches(rows, row_groups=[group], columns=[BLOBS], use_threads=False):
            yield batch.column(BLOBS).cast(type_)


def _rows_in(limit: int, nbytes: int, rows: int) -> int:
    """Return how many rows fit into the limit, by their mean size."""
    return min(max(limit * rows // max(nbytes, 1), 1), _ROWS_AT_ONCE)
