"""Descriptions of the differences between two rows: the column, and its value on each side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from mm_assets.accounting.canonical.types import retyped
from mm_assets.accounting.comparison.dataset import Dataset
from mm_assets.interleaved import json_codec
from mm_assets.interleaved.digest import row_digests
from mm_assets.interleaved.json_values import dumps, is_json

Names = tuple[str, str]

_SHOWN = 60  # characters shown of a long value
_BEFORE = 20  # of these, characters before the first difference


@dataclass(frozen=True)
class Difference:
    """One column of an item, or (``column`` None) a whole item, that differs between two datasets."""

    sample_id: str
    position: int
    modality: str
    column: str | None
    what: str

    def __str__(self) -> str:
        column = "" if self.column is None else f", column {self.column!r}"
        return f"sample {self.sample_id!r}, position {self.position}{column}: {self.what}"


def rows_at(dataset: Dataset, rows: Iterable[int]) -> dict[int, pa.Table]:
    """Return single rows of a dataset by number in reading order, each as a table in its own types."""
    numbers = sorted(set(rows), reverse=True)
    found: dict[int, pa.Table] = {}
    start = 0
    tables = dataset.tables() if numbers else iter(())
    for table in tables:
        while numbers and numbers[-1] < start + table.num_rows:
            row = numbers.pop()
            found[row] = table.take([row - start])  # a copy: a slice would keep the whole table
        if not numbers:
            break
        start += table.num_rows
    return found


def pair_differences(
    left: pa.Table, right: pa.Table, normalized: tuple[pa.Schema, pa.Schema] | None, names: Names
) -> list[Difference]:
    """Return the columns of an item that differ.

    They differ in their own types and, if given, in ``normalized`` types: those of the two whole datasets.
    """
    columns = dict.fromkeys([*left.column_names, *right.column_names])
    differing = [name for name in columns if _value(left, name) != _value(right, name)]
    if normalized is not None:
        retyped_rows = retyped(left, normalized[0]), retyped(right, normalized[1])
        differing = [
            name for name in differing if _value(retyped_rows[0], name) != _value(retyped_rows[1], name)
        ]
    if not differing:
        return [_difference(left, None, f"its columns have other types in {names[0]} than in {names[1]}")]
    return [_difference(left, name, _described(left, right, name, names)) for name in differing]


def unpaired_difference(row: pa.Table, counts: tuple[int, int], names: Names) -> Difference:
    """Return the difference of an item that occurs more often in one dataset than in the other."""
    modality = row.column("modality")[0].as_py()
    if 0 in counts:
        return _difference(row, None, f"the {modality} row is missing in {names[counts.index(0)]}")
    times = (
        f"{count} time{'' if count == 1 else 's'} in {name}"
        for count, name in zip(counts, names, strict=True)
    )
    return _difference(row, None, f"the {modality} row occurs {', '.join(times)}")


def _difference(row: pa.Table, column: str | None, what: str) -> Difference:
    sample_id, position, modality = (
        row.column(name)[0].as_py() for name in ("sample_id", "position", "modality")
    )
    return Difference(sample_id, position, modality, column, what)


def _value(row: pa.Table, name: str) -> int | None:
    """Return a digest of one column's type and value; None for null or a missing column."""
    is_there = name in row.column_names and row.column(name).null_count == 0
    return row_digests(row.select([name]))[0] if is_there else None


def _described(left: pa.Table, right: pa.Table, name: str, names: Names) -> str:
    first, second = _cell(left, name), _cell(right, name)
    start = _common_length(first.value, second.value)
    described = f"{first.shown(start)} in {names[0]}, {second.shown(start)} in {names[1]}"
    if isinstance(first.value, bytes) and isinstance(second.value, bytes):
        return f"{described}, different from byte {start} on"
    return described


@dataclass(frozen=True)
class _Cell:
    """A value for display: bytes as their number, long text as the part around the first difference."""

    kind: str
    value: Any = None

    def shown(self, start: int) -> str:
        if isinstance(self.value, bytes):
            return f"{len(self.value)} bytes"
        if not isinstance(self.value, str):
            return self.kind if self.value is None else f"{self.kind} {dumps(self.value)}"
        if len(self.value) <= _SHOWN:
            return f"{self.kind} {self.value!r}"
        begin = max(start - _BEFORE, 0)
        part = self.value[begin : begin + _SHOWN]
        return f"{self.kind} {'…' if begin else ''}{part!r}{'…' if begin + _SHOWN < len(self.value) else ''}"


def _cell(row: pa.Table, name: str) -> _Cell:
    if name not in row.column_names:
        return _Cell("no such column")
    column, field = row.column(name), row.schema.field(name)
    if column.null_count:
        return _Cell("null")
    if pa.types.is_binary(field.type) or pa.types.is_large_binary(field.type):
        return _Cell("bytes", column[0].as_py())
    return _Cell("json" if is_json(field) else str(field.type), json_codec.encode(column, field)[0])


def _common_length(first: Any, second: Any) -> int:
    """Return how many leading characters or bytes two values share."""
    if type(first) is not type(second) or not isinstance(first, str | bytes):
        return 0
    shared = min(len(first), len(second))
    return next((index for index in range(shared) if first[index] != second[index]), shared)
