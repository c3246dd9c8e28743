"""Columns of the rows that filters judge: passthrough columns, beside scores.

An image or text has the value of its own row; where that is null, the one of its sample's metadata row. A
sample has that of its metadata row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.model.errors import MmAssetsError
from mm_assets.model.nested_types import filled_column
from mm_assets.model.schema import RESERVED_COLUMNS

KEYS: Final = ("sample_id", "position", "modality")
"""Columns by which rows are found."""

OF_IMAGES: Final = ("sample_id", "position", "content_type")
"""Reserved columns that filters of images may look at; those of samples see the id alone."""

OF_TEXTS: Final = ("sample_id", "position", "text_content")
"""Those that filters of texts may look at."""

OF_SAMPLES: Final = ("sample_id",)


class AmbiguousName(MmAssetsError, ValueError):
    """A name that is in the wrong case for several columns."""


def spelled(name: str, columns: Iterable[str]) -> str | None:
    """Return a column by its name, in any case if there is only one such; None where there is none.

    Raises:
        AmbiguousName: there are several.
    """
    columns = list(columns)
    if name in columns:
        return name
    alike = [column for column in columns if column.lower() == name.lower()]
    if len(alike) > 1:
        names = " or ".join(map(repr, sorted(alike)))
        raise AmbiguousName(f"{name!r} may be {names}: put it in quotation marks")
    return alike[0] if alike else None


class RowColumns:
    """Columns of rows.

    Args:
        table: interleaved rows, whole samples of them, with the columns `KEYS`.
        rows: the row in ``table`` of each item by the number that it is asked for; None: they are the same.
    """

    def __init__(self, table: pa.Table, rows: Sequence[int] | None = None) -> None:
        self._table = table
        self._rows = rows

    def of_items(self, numbers: Sequence[int], names: Sequence[str]) -> pa.Table:
        """Return columns of some items; those that there are not are left out."""
        rows = list(numbers) if self._rows is None else [self._rows[number] for number in numbers]
        own = pa.array(rows, pa.int64())
        found = {}
        for name in self._spelled(names):
            column = self._table.column(name)
            found[name] = _taken(column, own)
            if name not in RESERVED_COLUMNS and found[name].null_count:
                beside = self._metadata_rows(self._table.column("sample_id").take(own))
                found[name] = _taken(column, pc.if_else(found[name].is_valid(), own, beside))
        return _table(found, len(rows))

    def of_samples(self, sample_ids: Sequence[str], names: Sequence[str]) -> pa.Table:
        """Return columns of the metadata rows of some samples; those that there are not are left out."""
        rows = self._metadata_rows(pa.array(sample_ids, pa.string()))
        found = {name: _taken(self._table.column(name), rows) for name in self._spelled(names)}
        if "sample_id" in found:  # also of a sample without such a row
            found["sample_id"] = pa.array(sample_ids, pa.string())
        return _table(found, len(sample_ids))

    def _spelled(self, names: Iterable[str]) -> list[str]:
        found = (spelled(name, self._table.column_names) for name in names)
        return list(dict.fromkeys(name for name in found if name is not None))

    def _metadata_rows(self, sample_ids: Any) -> pa.Array:
        """Return the row of the metadata of each sample; null where there is none."""
        numbers, ids = self._metadata
        at = pc.index_in(sample_ids, value_set=ids)
        at = at.combine_chunks() if isinstance(at, pa.ChunkedArray) else at
        return numbers.take(at)

    @cached_property
    def _metadata(self) -> tuple[pa.Array, pa.Array]:
        """The rows of metadata, and their sample ids."""
        numbers = pc.indices_nonzero(pc.equal(self._table.column("modality"), "metadata")).cast(pa.int64())
        ids = self._table.column("sample_id").take(numbers)
        return numbers, ids.combine_chunks() if ids.num_chunks != 1 else ids.chunk(0)


def _taken(column: pa.ChunkedArray, rows: pa.Array) -> pa.ChunkedArray:
    """Return values by their rows; null for null."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    if pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type):
        column = column.cast(pa.large_string() if pa.types.is_string_view(column.type) else pa.large_binary())
    return filled_column(column).take(rows)


def _table(columns: Mapping[str, Any], rows: int) -> pa.Table:
    # One column more than asked for: a table has as many rows as its columns.
    return pa.table({**columns, "": pa.nulls(rows)})
