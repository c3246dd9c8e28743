"""Values of binary Arrow arrays without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_HELD, _SLACK = 2, 1 << 16


def binary_views(chunk: pa.Array) -> list[memoryview | None]:
    """One view into the array's own buffer per value, None for null. Valid as long as the array lives."""
    if chunk.null_count == len(chunk):
        return [None] * len(chunk)
    offset_format: Literal["q", "i"] = "q" if pa.types.is_large_binary(chunk.type) else "i"
    _, offset_buffer, data = chunk.buffers()
    offsets = (
        memoryview(offset_buffer).cast("B").cast(offset_format)[chunk.offset : chunk.offset + len(chunk) + 1]
    )
    payload = memoryview(data) if data is not None else memoryview(b"")
    valid = chunk.is_valid().to_pylist()
    return [payload[offsets[i] : offsets[i + 1]] if valid[i] else None for i in range(len(chunk))]


def take_rows(table: pa.Table, rows: npt.ArrayLike) -> pa.Table:
    """Rows by their numbers, in that order.

    Columns of bytes become slices of what they were: no image is copied, all stay in memory.
    """
    indices = np.asarray(rows, np.int64)
    starts = np.flatnonzero(np.diff(indices, prepend=-2) != 1)
    runs = [
        (int(indices[start]), int(length))
        for start, length in zip(starts, np.diff(starts, append=len(indices)), strict=True)
    ]
    taken = pa.array(indices)
    return pa.Table.from_arrays(
        [_slices(column, runs) if is_bytes(column.type) else column.take(taken) for column in table.columns],
        schema=table.schema,
    )


def compact(table: pa.Table) -> pa.Table:
    """The same rows, copied where they keep more than twice their bytes in memory: of many batches a strict
    filter leaves little.
    """
    for index, column in enumerate(table.columns):
        if is_bytes(column.type) and column.get_total_buffer_size() > _HELD * column.nbytes + _SLACK:
            copied = pa.chunked_array([pa.concat_arrays(column.chunks)])
            table = table.set_column(index, table.schema.field(index), copied)
    return table


def _slices(column: pa.ChunkedArray, runs: Sequence[tuple[int, int]]) -> pa.ChunkedArray:
    return pa.chunked_array(
        [chunk for start, length in runs for chunk in column.slice(start, length).chunks], column.type
    )


def is_bytes(type_: pa.DataType) -> bool:
    """Whether values of a type are bytes, with 32- or 64-bit offsets."""
    return bool(pa.types.is_binary(type_) or pa.types.is_large_binary(type_))
