"""Batches of whole samples: rows grouped by sample, and tables cut by bytes on sample boundaries.

* `cut_by_bytes`, `cut_rows`: tables are cut into batches of bounded Arrow bytes, never within a sample.
* `grouped`: the rows of each sample are put together, for files of other tools in which they are not
  consecutive.
* `SampleIds`: sample ids are unique within a dataset; those of a partition are registered as they are met.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.model.errors import ShardError
from mm_assets.model.nested_types import compact, is_bytes, is_list, is_text, take_rows
from mm_assets.model.samples import Offsets, sample_codes, sample_offsets

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
        if (fixed := _fixed_bytes(column.type)) is not None:
            total += fixed
            continue
        # Every chunk adds overhead to each of its rows, so small columns are combined first. Images are not
        # copied for that.
        chunks = (
            column.chunks
            if is_bytes(column.type) or column.num_chunks < 2
            else [pa.concat_arrays(column.chunks)]
        )
        if chunks:
            found = [_array_row_bytes(chunk) for chunk in chunks]
            total += found[0] if len(found) == 1 else np.concatenate(found)
    return total


def _fixed_bytes(type_: pa.DataType) -> int | None:
    """Return the bytes of a value, where all values of a type have as many."""
    if pa.types.is_null(type_):
        return 0
    if pa.types.is_primitive(type_) or pa.types.is_decimal(type_) or pa.types.is_fixed_size_binary(type_):
        return int(type_.bit_width) // 8 + _BITS
    return None


def _array_row_bytes(array: pa.Array) -> Sizes:
    type_ = array.type
    if isinstance(type_, pa.BaseExtensionType):
        return _array_row_bytes(array.storage)
    if (fixed := _fixed_bytes(type_)) is not None:
        return np.full(len(array), fixed, np.int64)
    if _is_text_or_binary(type_):
        return np.diff(_offsets(array)) + _OFFSETS
    if pa.types.is_dictionary(type_) and _is_text_or_binary(type_.value_type):
        return _dictionary_row_bytes(array)
    if pa.types.is_struct(type_):
        sizes = np.full(len(array), _BITS, np.int64)
        for index in range(type_.num_fields):
            sizes += _array_row_bytes(array.field(index))
        return sizes
    if is_list(type_) or pa.types.is_map(type_):
        return _list_row_bytes(array)
    if pa.types.is_fixed_size_list(type_):
        values = array.values.slice(array.offset * type_.list_size, len(array) * type_.list_size)
        return _array_row_bytes(values).reshape(len(array), type_.list_size).sum(axis=1) + _BITS
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
    return is_text(type_) or is_bytes(type_)


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
    total = 0
    for table in tables:
        if table.num_rows == 0:
            continue
        pending.append(table)
        sizes.append(row_bytes(table))
        total += int(sizes[-1].sum())
        if total > max_bytes:
            whole, whole_sizes = pa.concat_tables(pending), np.concatenate(sizes)
            *parts, rest = cut_rows(whole, sample_offsets(whole), whole_sizes, max_bytes)
            yield from parts
            # The last sample may continue in the next table.
            pending, sizes = [rest], [whole_sizes[whole.num_rows - rest.num_rows :]]
            total = int(sizes[0].sum())
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


# Bytes of rows that wait for other rows of their sample, or of an earlier one. Images among them may take
# twice as much.
WINDOW_BYTES = 24 << 20


def grouped(
    tables: Iterator[pa.Table], spans: SampleSpans | None, max_bytes: int | None, name: str
) -> Iterator[pa.Table]:
    """Yield the tables of a file with the rows of each sample together.

    Samples come in the order of their first rows. Rows wait until all others of their sample, and of the
    samples before it, have been read.

    Args:
        tables: the tables of the file.
        spans: None if the rows of each sample are consecutive: the tables pass unchanged.
        max_bytes: limit of a batch. At most this or `WINDOW_BYTES`, whichever is more, of rows wait (None:
            any number).
        name: the file in messages.

    Raises:
        ShardError: more rows than that would have to wait.
    """
    if spans is None:
        yield from tables
        return
    limit = None if max_bytes is None else max(WINDOW_BYTES, max_bytes)
    pending: list[pa.Table] = []
    nbytes = rows_read = rest_bytes = 0
    for table in tables:
        pending.append(table)
        nbytes += table.nbytes
        rows_read += table.num_rows
        if limit is not None and nbytes >= limit // 4 + rest_bytes:
            ready, rest = spans.split(pa.concat_tables(pending), rows_read)
            yield ready
            del ready  # shares its image buffers with the pending rows
            pending, nbytes = [rest], rest.nbytes
            rest_bytes = nbytes
            if rest_bytes > limit:
                raise ShardError(f"{name}: {spans.too_far(rows_read, limit)}")
    if pending:
        yield spans.split(pa.concat_tables(pending), rows_read)[0]


@dataclass(frozen=True)
class SampleSpans:
    """The rows of each sample of a file. Samples are numbered in the order of their first rows.

    Attributes:
        ids: the sample ids, by number.
        samples: sample number of each run of equal ids.
        ends: the row at which each run ends.
        done: for each sample, how many rows must be read until it and all samples before it are complete.
    """

    ids: pa.Array
    samples: Offsets
    ends: Offsets
    done: Offsets

    @classmethod
    def of(cls, ids: Iterable[pa.Array]) -> SampleSpans | None:
        """Return the spans of all rows' sample ids; None if the rows of each sample are consecutive."""
        values: list[pa.Array] = []
        ends: list[Offsets] = []
        rows = 0
        for array in ids:
            runs = pc.run_end_encode(array.cast(pa.large_string()), run_end_type=pa.int64())
            values.append(runs.values)
            ends.append(rows + runs.run_ends.to_numpy(zero_copy_only=False))
            rows += len(array)
        if not rows:
            return None
        # A run may continue in the next array.
        runs = pc.run_end_encode(pa.concat_arrays(values), run_end_type=pa.int64())
        distinct, samples = sample_codes(runs.values)
        if len(distinct) == len(samples):
            return None
        run_ends = np.concatenate(ends)[runs.run_ends.to_numpy(zero_copy_only=False) - 1]
        last = np.zeros(len(distinct), np.int64)
        np.maximum.at(last, samples, run_ends)
        return cls(distinct, samples, run_ends, np.maximum.accumulate(last))

    def split(self, rows: pa.Table, read: int) -> tuple[pa.Table, pa.Table]:
        """Split rows into those of complete samples, sample by sample, and a copy of the others.

        Args:
            rows: the rows left over the last time, and all rows read since.
            read: how many rows of the file have been read.
        """
        samples = self._samples_of(rows, read)
        is_whole = samples < np.searchsorted(self.done, read, side="right")
        whole, rest = np.flatnonzero(is_whole), np.flatnonzero(~is_whole)
        return take_rows(rows, whole[np.argsort(samples[whole], kind="stable")]), compact(
            take_rows(rows, rest)
        )

    def row_order(self) -> Offsets:
        """Return the row numbers of the file in the order in which `grouped` yields the rows."""
        return np.argsort(np.repeat(self.samples, np.diff(self.ends, prepend=0)), kind="stable")

    def too_far(self, read: int, limit: int) -> str:
        """Return the message why the rows of a sample cannot be brought together, and what to do."""
        number = int(np.searchsorted(self.done, read, side="right"))
        runs = np.flatnonzero(self.samples == number)
        first = 0 if runs[0] == 0 else self.ends[runs[0] - 1]
        return (
            f"the rows of sample {self.ids[number].as_py()!r:.200} lie too far apart, "
            f"from row {first} to row {self.ends[runs[-1]] - 1}: "
            f"more than {limit >> 20} MiB of rows would have to be held; "
            "sort the file by sample_id, or allow larger batches (--max-batch-bytes, max_batch_bytes=)"
        )

    def _samples_of(self, rows: pa.Table, read: int) -> Offsets:
        distinct = pc.index_in(rows.column("sample_id").cast(pa.large_string()), self.ids)
        return distinct.combine_chunks().to_numpy(zero_copy_only=False).astype(np.int64)


class SampleIds:
    """The sample ids of one partition, in the order they are met.

    ``claimed_ids`` are those of other partitions.
    """

    def __init__(self, claimed_ids: Collection[str] = ()) -> None:
        self._claimed_ids = claimed_ids
        self._first: dict[str, tuple[str, str]] = {}

    def register(self, sample_id: str, member: str, path: str) -> str | None:
        """Register the id of a member (or row) of the file ``path``.

        Returns:
            None if the id is free, else the message what it collides with.
        """
        if sample_id in self._claimed_ids:
            return f"sample id {sample_id!r:.200} is already in another shard"
        first = self._first.get(sample_id)
        if first is None:
            self._first[sample_id] = (member, path)
            return None
        first_member = repr(first[0]) if first[1] == path else f"{first[0]!r} of {first[1]}"
        return f"sample id {sample_id!r:.200} occurs twice in this shard, first in member {first_member}"
