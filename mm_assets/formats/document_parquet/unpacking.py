"""Memory sizes of rows, and protection against files that unpack to far more than their size.

A Parquet dictionary stores a value once that any number of rows may have, so a small file can be huge in
memory.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from mm_assets.formats.batching import Sizes, row_bytes
from mm_assets.formats.parquet_file import ROWS_AT_ONCE, read_batches
from mm_assets.formats.tar.spool import unpacked_limit
from mm_assets.interleaved.errors import ShardError

MAX_ROW_BYTES = 1 << 30  # a row is held in memory as a whole
_MAX_PACKED = 64 << 20  # bytes of a column in a row group; its dictionary is only inspected below that
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
