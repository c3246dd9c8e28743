"""Items of a batch of documents: the row, position and content of each text or image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.formats.document_parquet.layout import BYTES, PATH, TEXT, ItemColumn
from mm_assets.interleaved import json_codec

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Items:
    """The texts or the images of a batch, in order.

    ``rows`` and ``positions`` have the row number and the position of each item; ``at`` is its index in
    ``values``. ``lengths`` has the length of each row's list, -1 for a null list. It is None if a row has one
    item and no list.
    """

    column: ItemColumn
    rows: Numbers
    positions: Numbers
    at: Numbers
    values: pa.Array
    lengths: Numbers | None

    def __len__(self) -> int:
        return len(self.rows)

    def texts(self) -> pa.Array:
        """Return the texts; null for an item that only has other fields."""
        return _as(
            self._field_values(TEXT) if self.column.has(TEXT) else self.values.take(pa.array(self.at)),
            pa.string(),
        )

    def names(self) -> list[str | None]:
        """Return the names of the images, None for those without one."""
        if self.column.has(PATH):
            return _as(self._field_values(PATH), pa.string()).to_pylist()
        if self.column.is_name:
            return _as(self.values.take(pa.array(self.at)), pa.string()).to_pylist()
        return [None] * len(self)

    def blobs(self) -> pa.Array:
        """Return the bytes of the images, one value for each of ``values``, without a copy."""
        stored = pc.struct_field(self.values, BYTES) if self.column.has(BYTES) else self.values
        return (
            stored
            if pa.types.is_binary(stored.type) or pa.types.is_large_binary(stored.type)
            else pa.nulls(len(stored), pa.binary())
        )

    def others(self) -> list[dict[str, Any]]:
        """Return the other fields of each item that are not null, as JSON values."""
        found: list[dict[str, Any]] = [{} for _ in range(len(self))]
        for name in self.column.others:
            for fields, value in zip(
                found, json_codec.encode(self._field_values(name), self.column.value.field(name)), strict=True
            ):
                if value is not None:
                    fields[name] = value
        return found

    def _field_values(self, name: str) -> pa.Array:
        return pc.struct_field(self.values, name).take(pa.array(self.at))


def items_of(column: ItemColumn, values: pa.Array) -> Items:
    """Return the items of a column. Nulls are no items, nor are texts of which all fields are null."""
    if column.is_list:
        lengths = (
            pc.fill_null(pc.list_value_length(values), -1).to_numpy(zero_copy_only=False).astype(np.int64)
        )
        counts = np.maximum(lengths, 0)
        rows = np.repeat(np.arange(len(values), dtype=np.int64), counts)
        flat = values.flatten()  # skips values under null lists
        positions = np.arange(len(flat), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
    else:
        lengths, flat = None, values
        rows, positions = np.arange(len(values), dtype=np.int64), np.full(len(values), column.position)
    is_item = _valid(flat)
    if column.content_fields == (TEXT,) and pa.types.is_struct(column.value):
        is_item &= np.logical_or.reduce([_valid(child) for child in flat.flatten()])
    at = np.flatnonzero(is_item)
    return Items(column, rows[at], positions[at], at, flat, lengths)


def lengths_beyond(items: Mapping[str, Items], rows: int) -> dict[int, dict[str, int | None]]:
    """Return by row the lengths of its lists that its items do not imply.

    These are lists with nulls at their end; None stands for a null list.
    """
    implied = np.zeros(rows, np.int64)
    for column_items in items.values():
        np.maximum.at(implied, column_items.rows, column_items.positions + 1)
    beyond: dict[int, dict[str, int | None]] = {}
    for name, column_items in items.items():
        if column_items.lengths is None:
            continue
        for row in np.flatnonzero(column_items.lengths != implied).tolist():
            length = int(column_items.lengths[row])
            beyond.setdefault(row, {})[name] = None if length < 0 else length
    return beyond


def spread_blobs(blobs: pa.Array, at: Numbers, places: Numbers, rows: int) -> pa.Array:
    """Return a ``large_binary`` column with some values of an array, else nulls, without copying bytes.

    Args:
        blobs: The array. All values but those selected are null.
        at: Indices of the selected values.
        places: Their rows in the result, ascending.
        rows: Rows of the result.
    """
    sizes, data, first = _packed(blobs)
    offsets = np.zeros(rows + 1, np.int64)
    offsets[places + 1] = sizes[at]
    is_present = np.zeros(rows, bool)
    is_present[places] = _valid(blobs)[at]
    buffers = [pa.array(is_present).buffers()[1], pa.py_buffer(np.cumsum(offsets) + first), data]
    return pa.Array.from_buffers(pa.large_binary(), rows, buffers)


def _packed(blobs: pa.Array) -> tuple[Numbers, pa.Buffer, int]:
    """Return the sizes of all values, the buffer with their bytes in sequence, and the first offset.

    Nulls have size 0.
    """
    sizes = pc.fill_null(pc.binary_length(blobs), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    if not sizes.any():
        return sizes, pa.py_buffer(b""), 0
    width = np.dtype(np.int64 if pa.types.is_large_binary(blobs.type) else np.int32)
    offsets = np.frombuffer(blobs.buffers()[1], width, len(blobs) + 1, blobs.offset * width.itemsize).astype(
        np.int64
    )
    if not np.array_equal(np.diff(offsets), sizes):  # there are bytes under a null
        return _packed(pc.fill_null(blobs, b""))
    return sizes, blobs.buffers()[2], int(offsets[0])


def _valid(array: pa.Array) -> npt.NDArray[np.bool_]:
    return np.array(array.is_valid().to_numpy(zero_copy_only=False))


def _as(array: pa.Array, type_: pa.DataType) -> pa.Array:
    return array if array.type == type_ else array.cast(type_)
