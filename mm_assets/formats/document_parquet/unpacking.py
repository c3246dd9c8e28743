"""Memory sizes of rows, and protection against files that unpack to far more than their size.

A Parquet dictionary stores a value once that any number of rows may have, so a small file can be huge in
memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mm_assets.formats.batching import Sizes, row_bytes
from mm_assets.formats.parquet_file import ROWS_AT_ONCE, checked, read_batches
from mm_assets.formats.tar.spool import unpacked_limit
from mm_assets.interleaved.errors import ShardError

MAX_ROW_BYTES = 1 << 30  # a row is held in memory as a whole
_MAX_PACKED = 64 << 20  # bytes of a column in a row group; its dictionary is only inspected below that
_HELD = 64 << 20  # bytes of rows that may be in memory at a time
_VALUE = 8  # bytes that any value takes in memory, nulls included

Reopen = Callable[[list[str]], pq.ParquetFile]  # opens the file with these columns read as dictionaries


def refuse_blown_up(metadata: pq.FileMetaData, size: int) -> None:
    """Refuse a file whose footer declares more unpacked bytes than its size warrants.

    Raises:
        ValueError: It does, or a row is too large.
    """
    total = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(index) for index in range(group.num_columns)]
        total += sum(column.total_uncompressed_size + _VALUE * column.num_values for column in columns)
        mean = group.total_byte_size // max(group.num_rows, 1)
        if mean > MAX_ROW_BYTES:
            raise ValueError(f"row group {number}: a row of {mean} bytes, at most {MAX_ROW_BYTES}")
    if total > unpacked_limit(size):
        raise ValueError(f"it unpacks to {total} bytes, more than {unpacked_limit(size)}")


class WrittenOut:
    """Guard on the bytes that one pass over a file writes out of its dictionaries, one for each pass.

    Args:
        file: the open file.
        size: its bytes.
        name: the file in messages.
        reopen: opens it again.
    """

    def __init__(self, file: pq.ParquetFile, size: int, name: str, reopen: Reopen) -> None:
        self._file, self._name, self._reopen = file, name, reopen
        self._limit = unpacked_limit(size)
        self._nbytes: Counter[str] = Counter()  # by column
        self._sizes = RowSizes(file.metadata, name, reopen)
        leaves = range(len(file.schema))
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        self._leaves = [
            leaf for leaf in leaves if any(_has_dictionary(group.column(leaf)) for group in groups)
        ]
        self._columns = {file.schema.column(leaf).path.partition(".")[0] for leaf in self._leaves}
        self._columns |= {field.name for field in file.schema_arrow if pa.types.is_dictionary(field.type)}

    def rows(self, group: int, columns: Collection[str]) -> int | None:
        """Return how many rows of a row group to read at a time; None if any number takes little memory.

        Raises:
            ShardError: a row, or a column, is too large.
        """
        worst = 0
        for leaf in self._leaves:
            chunk, column = self._file.metadata.row_group(group).column(leaf), self._file.schema.column(leaf)
            if column.path.partition(".")[0] not in columns or not _has_dictionary(chunk):
                continue
            if chunk.total_uncompressed_size > self._limit:
                self._refuse(column.path, *[chunk.total_uncompressed_size] * 2)
            if chunk.num_values * chunk.total_uncompressed_size <= _HELD:
                continue
            if column.max_repetition_level == 0:
                worst += self._longest(group, column.path)
            else:
                worst += self._sizes.of(group, [leaf], {})[1]
        return max(_HELD // worst, 1) if worst else None

    def count(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Count rows that have been read.

        Raises:
            ShardError: there are more bytes now than the file's size warrants.
        """
        for name in self._columns.intersection(rows.schema.names):
            column = rows.column(name)
            is_dictionary = pa.types.is_dictionary(column.type)
            self._nbytes[name] += (
                int(row_bytes(pa.table({name: column})).sum()) if is_dictionary else column.nbytes
            )
        if self._nbytes.total() > self._limit:
            self._refuse(*self._nbytes.most_common(1)[0], self._nbytes.total())

    def _longest(self, group: int, path: str) -> int:
        """Return the bytes of the longest dictionary value of a flat column; only its first page is read."""
        file = self._reopen([path])
        try:
            batches = file.iter_batches(1, row_groups=[group], columns=[path], use_threads=False)
            column = checked(lambda: next(batches), self._name, file).column(0)
            while pa.types.is_struct(column.type):
                (column,) = column.flatten()
            values = column.dictionary if pa.types.is_dictionary(column.type) else column
            return pc.max(pc.binary_length(values)).as_py() or 0
        finally:
            file.close(force=True)

    def _refuse(self, column: str, nbytes: int, total: int) -> None:
        raise ShardError(
            f"{self._name}: column {column!r} unpacks to {nbytes} bytes or more, all with dictionaries to "
            f"{total}, at most {self._limit}; "
            "write the file without dictionaries if you trust it"
        )


def _has_dictionary(chunk: pq.ColumnChunkMetaData) -> bool:
    is_coded = any("DICTIONARY" in encoding for encoding in chunk.encodings)
    return chunk.physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY") and is_coded


class RowSizes:
    """Memory sizes of rows, by row group."""

    def __init__(self, metadata: pq.FileMetaData, name: str, reopen: Reopen) -> None:
        self._metadata, self._name, self._reopen = metadata, name, reopen
        self._measured_sizes: dict[tuple[int, int], Sizes | None] = {}

    def of(self, group: int, leaves: list[int], most: dict[int, int]) -> tuple[int, int]:
        """Return the mean and the largest row size of a row group in bytes, as far as they are known.

        Args:
            group: Number of the row group.
            leaves: Parquet's leaf columns to count.
            most: Largest number of values in a row, for columns where that is known.

        Raises:
            ShardError: A row is too large.
        """
        row_group = self._metadata.row_group(group)
        mean = largest = 0
        for leaf in leaves:
            chunk = row_group.column(leaf)
            sizes = self._unpacked(group, leaf, most.get(leaf, chunk.num_values))
            mean += (chunk.total_uncompressed_size if sizes is None else int(sizes.sum())) // max(
                row_group.num_rows, 1
            )
            if sizes is not None and len(sizes):
                largest += int(sizes.max())
                if sizes.max() > MAX_ROW_BYTES:
                    row = sum(self._metadata.row_group(before).num_rows for before in range(group)) + int(
                        sizes.argmax()
                    )
                    place = f"{self._name}: row {row}, column {chunk.path_in_schema!r}"
                    raise ShardError(f"{place}: {sizes.max()} bytes, at most {MAX_ROW_BYTES}")
        return mean, largest

    def _unpacked(self, group: int, leaf: int, most: int) -> Sizes | None:
        """Return the bytes of each row in one column.

        None if no row can be too large, or if the column itself is large.
        """
        chunk = self._metadata.row_group(group).column(leaf)
        size = chunk.total_uncompressed_size
        if chunk.physical_type != "BYTE_ARRAY" or most * size <= MAX_ROW_BYTES or size > _MAX_PACKED:
            return None
        if (group, leaf) not in self._measured_sizes:
            self._measured_sizes[group, leaf] = self._measured(group, chunk.path_in_schema)
        return self._measured_sizes[group, leaf]

    def _measured(self, group: int, path: str) -> Sizes:
        file = self._reopen([path])
        try:
            sizes = [
                row_bytes(pa.Table.from_batches([b]))
                for b in read_batches(file, group, [path], ROWS_AT_ONCE, self._name)
            ]
            return np.concatenate(sizes) if sizes else np.zeros(0, np.int64)
        finally:
            file.close(force=True)
