"""Columns of stored scores: each names the measure that filled it, so that another version is seen."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

import pyarrow as pa

from mm_assets.formats.error_lines import error_line
from mm_assets.formats.parquet_file import UnreadableFile, read_small_table
from mm_assets.interleaved.digest import ContentDigest

_MEASURE = b"mm_assets:measure"


class Measure(Protocol):
    """What image measures and sample measures have in common."""

    name: ClassVar[str]
    type: ClassVar[pa.DataType]
    version: ClassVar[str]


M = TypeVar("M", bound=Measure)


def column_of(measure: Measure) -> pa.Field:
    """Return the column of a measure, with its version and fields in the metadata."""
    return pa.field(measure.name, measure.type, metadata={_MEASURE: _identity(measure)})


def column_values(values: Sequence[Any], column: pa.Field) -> pa.Array:
    """Return the values of a column.

    Raises:
        ValueError: in one line that names the measure, for values of another type.
    """
    try:
        return pa.array(values, column.type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"measure {column.name!r}: {error_line(error)}") from error


def is_filled_by(column: pa.Field, measure: Measure) -> bool:
    """Return whether a stored column has the values of this measure, in this version."""
    metadata = column.metadata or {}
    return bool(column.type == measure.type and metadata.get(_MEASURE) == _identity(measure))


def missing_measures(columns: Iterable[pa.Field], measures: Iterable[M]) -> list[M]:
    """Return the measures that none of some columns has the values of."""
    by_name = {column.name: column for column in columns}
    return [
        measure
        for measure in measures
        if measure.name not in by_name or not is_filled_by(by_name[measure.name], measure)
    ]


def is_measured(column: pa.Field) -> bool:
    """Return whether a column is that of a measure."""
    return _MEASURE in (column.metadata or {})


def with_columns(base: pa.Schema, columns: Iterable[pa.Field]) -> pa.Schema:
    """Return a schema of scores: the columns that all have, and those of measures, by name.

    The order does not depend on what was asked for first.
    """
    return pa.schema([*base, *sorted(columns, key=lambda column: column.name)])


def digest_of_scores(table: pa.Table) -> str:
    """Return the digest of all rows, which is the data version of the scores."""
    digest = ContentDigest()
    digest.observe(table)
    return digest.hexdigest()


def read_scores(uri: str, base: pa.Schema, digest: str | None = None) -> pa.Table:
    """Read stored scores: the columns that all have, and those of measures.

    Raises:
        FileNotFoundError: there is no file.
        UnreadableFile: for a damaged file, another table, and rows that have another ``digest``.
    """
    table = read_small_table(uri)
    if not table.schema.equals(with_columns(base, filter(is_measured, table.schema))):
        raise UnreadableFile(f"{uri}: damaged: its columns are not those of scores")
    if digest is not None and digest != digest_of_scores(table):
        raise UnreadableFile(f"{uri}: damaged: its rows are not those that were written")
    return table


def _identity(measure: Measure) -> bytes:
    fields: dict[str, Any] = {}
    if dataclasses.is_dataclass(measure):
        counted = {field.name for field in dataclasses.fields(measure) if field.compare}
        fields = {name: value for name, value in dataclasses.asdict(measure).items() if name in counted}
    return json.dumps({"version": measure.version, **fields}, sort_keys=True, default=str).encode()
