"""Index of rows to find those of two datasets without a partner, in 48 bytes of memory per row."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

Rows = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

_BYTES = 16


class RowIndex:
    """The key and the digests of every row, in reading order."""

    def __init__(self) -> None:
        self._keys = bytearray()
        self._digests = bytearray()
        self._normalized = bytearray()

    def add(self, table: pa.Table, digests: Iterable[int], normalized: Iterable[int]) -> None:
        """Add rows with their digests in their own types, and in those of the whole dataset."""
        columns = (table.column(name).to_pylist() for name in ("sample_id", "position", "modality"))
        self._keys += b"".join(map(row_key, *columns))
        self._digests += _packed(digests)
        self._normalized += _packed(normalized)

    def __len__(self) -> int:
        return len(self._keys) // _BYTES

    def key(self, row: int) -> bytes:
        """Return the key of a row."""
        return bytes(self._keys[row * _BYTES : (row + 1) * _BYTES])

    def count(self, key: bytes) -> int:
        """Return how many rows have this key."""
        return int((_words(self._keys) == np.frombuffer(key, np.uint64)).all(axis=1).sum())

    def without_partner(self, other: RowIndex, normalized: bool) -> tuple[Rows, Rows]:
        """Return the rows of this and the other index that remain when equal rows are paired off one by one.

        Rows are equal with the same key and digest; then, if ``normalized``, with the same key and digest in
        the types of their datasets.
        """
        left_rows, right_rows = np.arange(len(self)), np.arange(len(other))
        for name in ("_digests", "_normalized") if normalized else ("_digests",):
            left, right = (
                np.concatenate([_words(index._keys)[rows], _words(getattr(index, name))[rows]], axis=1)
                for index, rows in ((self, left_rows), (other, right_rows))
            )
            is_left, is_right = _unpaired(left, right)
            left_rows, right_rows = left_rows[is_left], right_rows[is_right]
        return left_rows, right_rows


def row_key(sample_id: str, position: int, modality: str) -> bytes:
    """Return 16 bytes that identify an item in its dataset."""
    return xxhash.xxh3_128_digest(f"{position}:{modality}:{sample_id}".encode())


def _unpaired(left: _Words, right: _Words) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return masks of the rows of each array for which the other has no equal row left."""
    both = np.concatenate([left, right])
    side = np.repeat([0, 1], [len(left), len(right)])
    order = np.lexsort((side, *both.T))
    both, side = both[order], side[order]
    starts = np.ones(len(both), bool)
    starts[1:] = (both[1:] != both[:-1]).any(axis=1)
    group = np.cumsum(starts) - 1
    counts = np.stack(
        [np.bincount(group[side == side_number], minlength=starts.sum()) for side_number in (0, 1)]
    )
    first = np.flatnonzero(starts)[group] + np.where(side == 1, counts[0][group], 0)
    rank = np.arange(len(both)) - first
    unpaired = np.empty(len(both), bool)
    unpaired[order] = rank >= counts.min(axis=0)[group]
    return unpaired[: len(left)], unpaired[len(left) :]


def _packed(digests: Iterable[int]) -> bytes:
    return b"".join(digest.to_bytes(_BYTES, "little") for digest in digests)


def _words(packed: bytearray) -> _Words:
    return np.frombuffer(packed, np.uint64).reshape(-1, 2)
