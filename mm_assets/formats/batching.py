"""Cutting of tables into batches by bytes, on sample boundaries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.interleaved.buffers import is_bytes
from mm_assets.interleaved.samples import sample_offsets

Sizes = npt.NDArray[np.int64]

# Bytes of a row beside its values, at most: two 64-bit offsets and two bytes of validity bitmap.
_OFFSETS = 18
_BITS = 2


def row_bytes(table: pa.Table) -> Sizes:
    """Return an upper bound of the Arrow bytes of each row: values, offsets and validity bits of all columns.

    The fixed overhead of a chunk (one more offset, a partly used bitmap byte) is counted with every row,
    since a chunk may hold a single row.
    """
    total = np.zeros(table.num_rows, np.int64)
    for column in table.columns:
        # Every chunk adds overhead to each of its rows, so small columns are combined first. Images are not
        # copied for that.
        chunks = (
            column.chunks
            if is_bytes(column.type) or column.num_chunks < 2
            else [pa.concat_arrays(column.chunks)]
        )
        if chunks:
            total += np.concatenate([_array_row_bytes(chunk) for chunk in chunks])
    return total


def _array_row_bytes(array: pa.Array) -> Sizes:
    type_ = array.type
    if isinstance(type_, pa.BaseExtensionType):
        return _array_row_bytes(array.storage)
    if pa.types.is_null(type_):
        return np.zeros(len(array), np.int64)
    if _is_text_or_binary(type_):
        return np.diff(_offsets(array)) + _OFFSETS
    if pa.types.is_dictionary(type_) and _is_text_or_binary(type_.value_type):
        return _dictionary_row_bytes(array)
    if pa.types.is_struct(type_):
        sizes = np.full(len(array), _BITS, np.int64)
        for index in range(type_.num_fields):
            sizes += _array_row_bytes(array.field(index))
        return sizes
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_map(type_):
        return _list_row_bytes(array)
    if pa.types.is_fixed_size_list(type_):
        values = array.values.slice(array.offset * type_.list_size, len(array) * type_.list_size)
        return _array_row_bytes(values).reshape(len(array), type_.list_size).sum(axis=1) + _BITS
    if pa.types.is_primitive(type_) or pa.types.is_decimal(type_) or pa.types.is_fixed_size_binary(type_):
        return np.full(len(array), type_.bit_width // 8 + _BITS, np.int64)
    mean = -(-array.nbytes // max(len(array), 1))  # views, dictionaries etc.: single rows have no size
    return np.full(len(array), mean + _OFFSETS, np.int64)


def _dictionary_row_bytes(array: pa.DictionaryArray) -> Sizes:
    """Return the bytes of the values as if each row had its own copy, but at least the array's mean."""
    mean = -(-array.nbytes // max(len(array), 1))
    if not len(array.dictionary):
        return np.full(len(array), mean + _OFFSETS, np.int64)
    sizes = pc.binary_length(array.dictionary).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    value_bytes = np.where(
        array.is_valid().to_numpy(zero_copy_only=False), sizes[array.indices.fill_null(0).to_numpy()], 0
    )
    return np.maximum(value_bytes, mean) + _OFFSETS


def _offsets(array: pa.Array) -> Sizes:
    """Return the start and end offsets of text or binary values in their buffer."""
    if len(array) == 0:
        return np.zeros(1, np.int64)
    width = np.dtype(
        np.int64 if pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type) else np.int32
    )
    found = np.frombuffer(array.buffers()[1], width, len(array) + 1, array.offset * width.itemsize)
    return found.astype(np.int64, copy=False)


def _list_row_bytes(array: pa.Array) -> Sizes:
    offsets = array.offsets.to_numpy()
    if len(array) == 0:
        return np.zeros(0, np.int64)
    inside = np.full(offsets[-1] - offsets[0], _BITS, np.int64)
    for values in [array.keys, array.items] if pa.types.is_map(array.type) else [array.values]:
        inside += _array_row_bytes(values.slice(offsets[0], offsets[-1] - offsets[0]))
    ends = np.concatenate([[0], np.cumsum(inside)])[offsets - offsets[0]]
    return np.diff(ends) + _OFFSETS


def _is_text_or_binary(type_: pa.DataType) -> bool:
    is_text = pa.types.is_string(type_) or pa.types.is_large_string(type_)
    return is_text or pa.types.is_binary(type_) or pa.types.is_large_binary(type_)


def cut_by_bytes(tables: Iterable[pa.Table], max_bytes: int | None) -> Iterator[pa.Table]:
    """Regroup tables, cut anywhere, into tables of whole samples of at most ``max_bytes`` Arrow bytes.

    A single sample beyond the limit passes alone. Memory: the limit plus one incoming table.

    Args:
        tables: a stream in which the rows of each sample are consecutive.
        max_bytes: None gives one table.

    Raises:
        ValueError: ``max_bytes`` is not positive.
    """
    if max_bytes is None:
        everything = list(tables)
        if everything:
            yield pa.concat_tables(everything)
        return
    if max_bytes <= 0:
        raise ValueError(f"max_batch_bytes must be positive, not {max_bytes}")
    pending: list[pa.Table] = []
    sizes: list[Sizes] = []  # row sizes of each pending table, so that every row is measured once
    for table in tables:
        if table.num_rows == 0:
            continue
        pending.append(table)
        sizes.append(row_bytes(table))
        if sum(int(table_sizes.sum()) for table_sizes in sizes) > max_bytes:
            whole, whole_sizes = pa.concat_tables(pending), np.concatenate(sizes)
            *parts, rest = cut_rows(whole, sample_offsets(whole), whole_sizes, max_bytes)
            yield from parts
            # The last sample may continue in the next table.
            pending, sizes = [rest], [whole_sizes[whole.num_rows - rest.num_rows :]]
    if pending:
        whole = pa.concat_tables(pending)
        yield from cut_rows(whole, sample_offsets(whole), np.concatenate(sizes), max_bytes)


def cut_rows(table: pa.Table, offsets: Sizes, sizes: Sizes, max_bytes: int) -> list[pa.Table]:
    """Cut a table into parts of whole samples of at most ``max_bytes``; one larger sample is its own part.

    Args:
        table: rows of whole samples.
        offsets: the first row of each sample, as `sample_offsets` returns them.
        sizes: bytes of each row.
        max_bytes: limit of a part.
    """
    ends = np.concatenate([[0], np.cumsum(sizes)])[offsets]
    cuts = [0]
    start = 0
    for index in range(1, len(offsets) - 1):
        if ends[index + 1] - start > max_bytes:  # sample number `index` no longer fits
            cuts.append(int(offsets[index]))
            start = ends[index]
    return [table.slice(low, high - low) for low, high in zip(cuts, [*cuts[1:], table.num_rows], strict=True)]
