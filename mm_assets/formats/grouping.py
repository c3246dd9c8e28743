"""Grouping of rows by sample, for files of other tools in which the rows of a sample are not consecutive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.interleaved.buffers import compact, take_rows
from mm_assets.interleaved.errors import ShardError
from mm_assets.interleaved.samples import Offsets, sample_codes

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
