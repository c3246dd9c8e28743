"""Sample boundaries and item order within a table."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.interleaved.buffers import take_rows
from mm_assets.interleaved.errors import DataError
from mm_assets.interleaved.schema import METADATA_POSITION, MODALITIES

Offsets = npt.NDArray[np.int64]

MAX_INT32 = 2**31 - 1


def sample_offsets(table: pa.Table) -> Offsets:
    """Return the row offsets of the samples of a table.

    ``offsets[i]:offsets[i+1]`` are the rows of the i-th run of one sample_id.
    """
    if table.num_rows == 0:
        return np.zeros(1, np.int64)
    ids = table.column("sample_id")
    if not pa.types.is_string(ids.type):  # run_end_encode takes no dictionaries and views
        ids = ids.cast(pa.large_string())
    ids = ids.combine_chunks()
    if isinstance(ids, pa.ChunkedArray):  # more text than 32-bit offsets can address
        ids = ids.cast(pa.large_string()).combine_chunks()
    ends = pc.run_end_encode(ids, run_end_type=pa.int64()).run_ends.to_numpy(zero_copy_only=False)
    return np.concatenate([np.zeros(1, np.int64), ends])


def sample_codes(ids: pa.Array) -> tuple[pa.Array, Offsets]:
    """Return the distinct ids in order of first occurrence, and for each id its index among them."""
    encoded = pc.dictionary_encode(ids, null_encoding="encode")
    return encoded.dictionary, encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def group_samples(table: pa.Table) -> pa.Table:
    """Return the table with all rows of a sample consecutive, samples in the order of their first rows.

    The same table object is returned if that is already so.
    """
    offsets = sample_offsets(table)
    ids = table.column("sample_id").take(pa.array(offsets[:-1], pa.int64()))
    distinct, samples = sample_codes(ids.cast(pa.large_string()).combine_chunks())
    if len(distinct) == len(samples):
        return table
    return take_rows(table, np.argsort(np.repeat(samples, np.diff(offsets)), kind="stable"))


def sort_items(table: pa.Table) -> pa.Table:
    """Sort the rows of each sample into canonical order: metadata, then by position, text before image.

    Sample order is kept.

    Raises:
        DataError: No output layout has a place for a row: a modality other than metadata, text and image; a
            position that does not fit its modality (or 32 bits); a null in one of the three columns; two
            items of one modality at one position. The message names sample and position.
    """
    if table.num_rows == 0:
        return table
    for name in ("sample_id", "position", "modality"):
        if table.column(name).null_count:
            at = pc.index(pc.is_null(table.column(name)), True).as_py()
            raise DataError(f"{_item(table, at)}: {name} is null")
    offsets = sample_offsets(table)
    ranks = _modality_ranks(table)
    positions = table.column("position").cast(pa.int64()).to_numpy()
    if positions.max() > MAX_INT32:
        raise DataError(f"{_item(table, int(positions.argmax()))}: the position does not fit 32 bits")
    misplaced = (ranks == 0) != (positions == METADATA_POSITION)
    if misplaced.any() or (positions < METADATA_POSITION).any():
        at = int(np.argmax(misplaced | (positions < METADATA_POSITION)))
        raise DataError(f"{_item(table, at)}: metadata rows have position -1, text and image rows 0 or more")
    keys = positions * len(MODALITIES) + ranks
    key_steps = np.diff(keys)
    within_sample = np.ones(table.num_rows - 1, bool)
    within_sample[offsets[1:-1] - 1] = False
    if (key_steps[within_sample] < 0).any():
        sample_of_row = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        order = np.lexsort((keys, sample_of_row))
        table, keys = table.take(pa.array(order)), keys[order]
        key_steps = np.diff(keys)
    repeated = within_sample & (key_steps == 0)
    if repeated.any():
        at = int(np.argmax(repeated)) + 1
        if table.column("modality")[at].as_py() == "metadata":
            raise DataError(f"sample id {table.column('sample_id')[at].as_py()!r} occurs twice")
        raise DataError(f"{_item(table, at)}: a second item of this modality at this position")
    return table


def _modality_ranks(table: pa.Table) -> Offsets:
    ranks = pc.index_in(table.column("modality").cast(pa.string()), pa.array(MODALITIES)).combine_chunks()
    if ranks.null_count:
        at = pc.index(pc.is_null(ranks), True).as_py()
        raise DataError(f"{_item(table, at)}: modality is none of {', '.join(MODALITIES)}")
    return ranks.to_numpy(zero_copy_only=False).astype(np.int64)


def _item(table: pa.Table, row: int) -> str:
    sample, position, modality = (table.column(c)[row].as_py() for c in ("sample_id", "position", "modality"))
    return f"sample {sample!r}, position {position}, modality {modality!r}"


class UniqueSamples:
    """Guard against a repeated sample id, which would overwrite or merge with the first sample of that id."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def observe(self, table: pa.Table) -> int:
        """Register the samples of a table and return their number.

        Raises:
            DataError: An id occurred before; the message names it.
        """
        offsets = sample_offsets(table)[:-1]
        ids = table.column("sample_id").take(pa.array(offsets, pa.int64())).to_pylist()
        for sample_id in ids:
            if sample_id in self._seen:
                raise DataError(
                    f"sample id {sample_id!r} occurs twice "
                    "(its rows are not consecutive, or it is a duplicate)"
                )
            self._seen.add(sample_id)
        return len(ids)

    @property
    def count(self) -> int:
        """Samples seen so far."""
        return len(self._seen)
