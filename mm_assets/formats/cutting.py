"""Cut tables by real bytes, on sample boundaries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.interleaved.samples import sample_offsets

_TABLE_RESERVE = 64  # bytes a column of a table may take beyond its rows: one more offset, bitmap padding


def row_bytes(table: pa.Table) -> npt.NDArray[np.int64]:
    """At least the Arrow bytes each row takes: values, offsets and validity bits of every column."""
    total = np.zeros(table.num_rows, np.int64)
    for column in table.columns:
        total += _column_row_bytes(column)
    return total


def _column_row_bytes(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    type_ = column.type
    if pa.types.is_null(type_):
        return np.zeros(len(column), np.int64)
    if _is_text_or_binary(type_):
        lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy().astype(np.int64)
        return lengths + 9
    if pa.types.is_primitive(type_):
        return np.full(len(column), type_.bit_width // 8 + 2, np.int64)
    mean = -(-column.nbytes // max(len(column), 1))  # nested: no row-wise length without a walk
    return np.full(len(column), mean + 9, np.int64)


def _is_text_or_binary(type_: pa.DataType) -> bool:
    is_text = pa.types.is_string(type_) or pa.types.is_large_string(type_)
    return is_text or pa.types.is_binary(type_) or pa.types.is_large_binary(type_)


def cut_by_bytes(tables: Iterable[pa.Table], max_bytes: int | None) -> Iterator[pa.Table]:
    """Regroup a stream of tables (cut anywhere) into tables of whole samples of at most ``max_bytes`` Arrow bytes.

    A single sample beyond the limit passes alone. None: one table. Memory: the limit plus one incoming table.
    """
    if max_bytes is None:
        everything = list(tables)
        if everything:
            yield pa.concat_tables(everything)
        return
    if max_bytes <= 0:
        raise ValueError(f"max_batch_bytes must be positive, not {max_bytes}")
    pending: list[pa.Table] = []
    for table in tables:
        if table.num_rows == 0:
            continue
        pending.append(table)
        if sum(t.nbytes for t in pending) + _reserve(table) >= max_bytes:
            whole = pa.concat_tables(pending)
            cuts = _cuts(whole, max_bytes)
            for start, end in zip(cuts, cuts[1:], strict=False):
                yield whole.slice(start, end - start)
            pending = [whole.slice(cuts[-1])]  # its last sample may go on in the next table
    if pending:
        whole = pa.concat_tables(pending)
        cuts = [*_cuts(whole, max_bytes), whole.num_rows]
        for start, end in zip(cuts, cuts[1:], strict=False):
            yield whole.slice(start, end - start)


def _reserve(table: pa.Table) -> int:
    return _TABLE_RESERVE * table.num_columns


def _cuts(table: pa.Table, max_bytes: int) -> list[int]:
    """Row offsets at which full batches start; what follows the last one is not known to be complete."""
    offsets = sample_offsets(table)
    ends = np.concatenate([[0], np.cumsum(row_bytes(table))])[offsets]
    limit = max_bytes - _reserve(table)
    cuts = [0]
    start = 0
    for index in range(1, len(offsets) - 1):
        if ends[index + 1] - start > limit:  # the sample index..index+1 does not fit any more
            cuts.append(int(offsets[index]))
            start = ends[index]
    return cuts
