"""Zero-copy access to the values of binary Arrow arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_MAX_KEPT_RATIO = 2  # bytes kept in memory per byte used
_SLACK = 1 << 16  # bytes kept in vain that are not worth a copy


def binary_views(chunk: pa.Array) -> list[memoryview | None]:
    """Return one view into the array's own buffer per value, None for null.

    The views are valid as long as the array lives.
    """
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
    """Return rows by their numbers, in the order given.

    Binary columns become slices of the original buffers: no image is copied, and the whole original buffer
    stays in memory (see `compact`).
    """
    indices = np.asarray(rows, np.int64)
    starts = np.flatnonzero(np.diff(indices, prepend=-2) != 1)
    runs = [
        (int(indices[start]), int(length))
        for start, length in zip(starts, np.diff(starts, append=len(indices)), strict=True)
    ]
    row_indices = pa.array(indices)
    return pa.Table.from_arrays(
        [
            _slices(column, runs)
            if is_bytes(column.type) or pa.types.is_string_view(column.type)  # Arrow's ``take`` has no views
            else column.take(row_indices)
            for column in table.columns
        ],
        schema=table.schema,
    )


def compact(table: pa.Table) -> pa.Table:
    """Return the same rows, copying binary columns that keep more than twice their own bytes in memory.

    A strict filter leaves few rows of many batches; without the copy each row would keep its batch alive.
    """
    for index, column in enumerate(table.columns):
        if (
            is_bytes(column.type)
            and column.get_total_buffer_size() > _MAX_KEPT_RATIO * column.nbytes + _SLACK
        ):
            copied = pa.chunked_array([pa.concat_arrays(column.chunks)])
            table = table.set_column(index, table.schema.field(index), copied)
    return table


def _slices(column: pa.ChunkedArray, runs: Sequence[tuple[int, int]]) -> pa.ChunkedArray:
    return pa.chunked_array(
        [chunk for start, length in runs for chunk in column.slice(start, length).chunks], column.type
    )


def is_bytes(type_: pa.DataType) -> bool:
    """Return True for a binary type with 32- or 64-bit offsets."""
    return bool(pa.types.is_binary(type_) or pa.types.is_large_binary(type_))
