"""Rows of a sample brought together where a file of others has them apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.formats.reader import ShardError
from mm_assets.interleaved.buffers import compact, take_rows
from mm_assets.interleaved.samples import Offsets, sample_codes

WINDOW_BYTES = (
    24 << 20
)  # of rows that wait for others of their sample, or of one before; images among them may take twice as much


def grouped(
    tables: Iterator[pa.Table], spans: SampleSpans | None, max_bytes: int | None, name: str
) -> Iterator[pa.Table]:
    """The tables of the file ``name`` as they are if the rows of each of its samples are consecutive
    (``spans`` is None), else by sample.

    Samples come in the order of their first rows. Rows are held until all others of their sample, and of the
    samples before it, have been read: at most `WINDOW_BYTES` or ``max_bytes``, whatever is more (None: any
    number). Raises `ShardError` where that is not enough.
    """
    if spans is None:
        yield from tables
        return
    limit = None if max_bytes is None else max(WINDOW_BYTES, max_bytes)
    held: list[pa.Table] = []
    nbytes = read = kept = 0
    for table in tables:
        held.append(table)
        nbytes += table.nbytes
        read += table.num_rows
        if limit is not None and nbytes >= limit // 4 + kept:
            ready, rest = spans.split(pa.concat_tables(held), read)
            yield ready
            del ready  # its images are those of the rows held
            held, nbytes = [rest], rest.nbytes
            kept = nbytes
            if kept > limit:
                raise ShardError(f"{name}: {spans.too_far(read, limit)}")
    if held:
        yield spans.split(pa.concat_tables(held), read)[0]


@dataclass(frozen=True)
class SampleSpans:
    """Which rows of a file are whose. Samples are numbered by their first rows.

    ``samples`` are the numbers of the samples of the runs of equal ids, ``ends`` the rows at which the runs
    end, ``done`` for each sample how many rows have to be read until it and all samples before it are whole.
    """

    ids: pa.Array
    samples: Offsets
    ends: Offsets
    done: Offsets

    @classmethod
    def of(cls, ids: Iterable[pa.Array]) -> SampleSpans | None:
        """The spans by the sample ids of all rows; None where the rows of each sample are consecutive."""
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
        # A run may go on in the next array.
        runs = pc.run_end_encode(pa.concat_arrays(values), run_end_type=pa.int64())
        distinct, samples = sample_codes(runs.values)
        if len(distinct) == len(samples):
            return None
        run_ends = np.concatenate(ends)[runs.run_ends.to_numpy(zero_copy_only=False) - 1]
        last = np.zeros(len(distinct), np.int64)
        np.maximum.at(last, samples, run_ends)
        return cls(distinct, samples, run_ends, np.maximum.accumulate(last))

    def split(self, rows: pa.Table, read: int) -> tuple[pa.Table, pa.Table]:
        """Rows of the samples that are whole, sample by sample, and a copy of the others, when ``read`` rows
        of the file have been read.

        ``rows`` are what was left the last time, and all rows read since.
        """
        samples = self._samples_of(rows, read)
        is_whole = samples < np.searchsorted(self.done, read, side="right")
        whole, rest = np.flatnonzero(is_whole), np.flatnonzero(~is_whole)
        return take_rows(rows, whole[np.argsort(samples[whole], kind="stable")]), compact(
            take_rows(rows, rest)
        )

    def row_order(self) -> Offsets:
        """The numbers of the file's rows, in the order in which `grouped` gives them."""
        return np.argsort(np.repeat(self.samples, np.diff(self.ends, prepend=0)), kind="stable")

    def too_far(self, read: int, limit: int) -> str:
        """Why the rows of a sample cannot be brought together, and what to do."""
        number = int(np.searchsorted(self.done, read, side="right"))
        runs = np.flatnonzero(self.samples == number)
        first = 0 if runs[0] == 0 else self.ends[runs[0] - 1]
        return (
            f"the rows of sample {self.ids[number].as_py()!r:.200} lie too far apart, from row {first} to row {self.ends[runs[-1]] - 1}: "
            f"more than {limit >> 20} MiB of rows would have to be held; sort the file by sample_id, or allow larger batches "
            "(--max-batch-bytes, max_batch_bytes=)"
        )

    def _samples_of(self, rows: pa.Table, read: int) -> Offsets:
        distinct = pc.index_in(rows.column("sample_id").cast(pa.large_string()), self.ids)
        return distinct.combine_chunks().to_numpy(zero_copy_only=False).astype(np.int64)
