"""Rows of decoded samples, and Arrow tables built from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from mm_assets.formats.content_columns import string_leaves
from mm_assets.formats.webdataset.declared_types import DeclaredTypes
from mm_assets.formats.webdataset.resolve import ResolvedContent
from mm_assets.interleaved import json_codec
from mm_assets.interleaved.faults import Fault
from mm_assets.interleaved.json_times import RAW
from mm_assets.interleaved.json_values import FieldTally, build_column, dumps, is_json, json_field
from mm_assets.interleaved.schema import INTERLEAVED_SCHEMA, align_table, reconcile_schema
from mm_assets.interleaved.unify import unify_schemas

_DECLARED_APART = 256  # declarations that are kept apart until they are united


@dataclass(slots=True)
class Row:
    """One item before its bytes are read. ``binary`` has bytes that were in the json itself.

    If ``is_typed``, the source states that there is no content type; otherwise a missing one is detected from
    the bytes.
    """

    position: int
    modality: str
    content_type: str | None = None
    text: str | None = None
    content: ResolvedContent | None = None
    source_ref: str | None = None
    error: Fault | None = None
    binary: bytes | None = None
    is_typed: bool = False
    extras: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Sample:
    """The rows of one sample.

    ``declared`` has the types of its passthrough columns, if the json states them. ``room`` are the bytes
    that columns of declared types take while they are built. ``nbytes`` are those of the members with its
    texts and fields.
    """

    sample_id: str
    rows: list[Row]
    declared: DeclaredTypes | None = None
    room: int = 0
    nbytes: int = 0


class SchemaTally:
    """Tally of the passthrough columns of all samples of a tar.

    ``declared`` has the columns whose types a json states, ``tallies`` the kinds of values of all others.
    ``leaves`` has of each of these with lists or objects the `string_leaves` of the first that has any.
    ``declared_ints`` tallies the integers of declared 64-bit columns: whether they are exact as float64, if
    other samples have floats, depends on their values.
    """

    def __init__(self) -> None:
        self.tallies: dict[str, FieldTally] = {}
        self.leaves: dict[str, set[str]] = {}
        self.declared_ints: dict[str, FieldTally] = {}
        self._declared: dict[DeclaredTypes, None] = {}
        self._united: pa.Schema | None = None  # of declarations seen earlier
        self._has_undeclared = False

    def observe(self, sample: Sample) -> None:
        """Add the columns of one sample."""
        if sample.declared is not None:
            self._declared.setdefault(sample.declared)
            if len(self._declared) > _DECLARED_APART:
                self._united = self._declared_schema()
                self._declared.clear()
            for name in sample.declared.int64s:
                ints = self.declared_ints.setdefault(name, FieldTally())
                for row in sample.rows:
                    ints.observe(row.extras.get(name))
            return
        self._has_undeclared = True
        for row in sample.rows:
            for name, value in row.extras.items():
                tally = self.tallies.get(name)
                if tally is None:
                    tally = self.tallies[name] = FieldTally()
                tally.observe(value)
                if isinstance(value, list | dict) and not self.leaves.get(name):
                    self.leaves[name] = string_leaves(value)

    @property
    def declared(self) -> list[pa.Schema]:
        """The union of all declared schemas, without dictionaries; none if no sample declares any.

        Columns that some samples lack are nullable.
        """
        schema = self._declared_schema()
        if schema is None or not self._has_undeclared:
            return [] if schema is None else [schema]
        return [pa.schema([field.with_nullable(True) for field in schema])]

    def _declared_schema(self) -> pa.Schema | None:
        schemas = [reconcile_schema(declared.schema) for declared in self._declared]
        united = schemas if self._united is None else [self._united, *schemas]
        return unify_schemas(united) if united else None

    def raw_schema(self) -> pa.Schema:
        """Return the inferred types of columns whose samples declare none."""
        return pa.schema([tally.field(name) for name, tally in self.tallies.items()])

    def schema(self) -> pa.Schema:
        """Return the tar's columns: the union of all.

        A column is JSON text if its integers meet floats and are not exact as float64.
        """
        # Only with such samples: an empty schema would make all columns nullable.
        undeclared = [self.raw_schema()] if self._has_undeclared else []
        union = unify_schemas([*self.declared, *undeclared])
        return pa.schema([field if self._is_exact(field) else json_field(field.name) for field in union])

    def _is_exact(self, field: pa.Field) -> bool:
        column_tallies = [
            tallies[field.name] for tallies in (self.tallies, self.declared_ints) if field.name in tallies
        ]
        return not pa.types.is_floating(field.type) or all(tally.ints_fit_float for tally in column_tallies)


# Exceptions that Arrow may raise for values that do not fit the json's own schema.
MISFITS = (ValueError, TypeError, AttributeError, ArithmeticError, LookupError, pa.ArrowException)


def misfit(sample: Sample, extras: pa.Schema, target: pa.Schema) -> str | None:
    """Return why values of a sample do not fit its passthrough columns, or the same columns of ``target``.

    None if they fit.
    """
    try:
        table = build_table([sample], pa.nulls(0, pa.large_binary()), extras, extras.names)
        if sample.declared is not None:
            _refuse_changed(sample, sample.declared, table)
        align_table(table, pa.schema([target.field(name) for name in extras.names]))
    except MISFITS as error:
        return str(error)
    return None


def _refuse_changed(sample: Sample, declared: DeclaredTypes, table: pa.Table) -> None:
    """Refuse values that their declared type would accept and change.

    For example, two lists of one and three values pass for two lists of two.
    """
    declared.try_out(table)
    for name in declared.lax:
        original = [row.extras.get(name) for row in sample.rows]
        column = table.schema.field(name)
        if is_json(column) and not any(isinstance(value, dict) and RAW in value for value in original):
            continue
        stored = json_codec.encode(table.column(name), column)
        # Compared as text as well: NaN is not equal to itself.
        if stored != original and dumps(stored) != dumps(original):
            raise ValueError(f"column {name!r}: not all values are of the form of {column.type!s:.200}")


def build_table(
    samples: Sequence[Sample], blobs: pa.Array, extras: pa.Schema, columns: Iterable[str]
) -> pa.Table:
    """Return a table of samples that share one passthrough schema.

    Args:
        samples: The samples.
        blobs: Values of ``binary_content``, one per row.
        extras: The passthrough schema.
        columns: Names of the columns to build.

    Raises:
        ValueError: A value does not fit its declared type.
    """
    rows = [row for sample in samples for row in sample.rows]
    is_declared = bool(samples) and samples[0].declared is not None
    requested = set(columns)
    arrays: list[pa.Array] = []
    fields: list[pa.Field] = []
    for column in INTERLEAVED_SCHEMA:
        if column.name in requested:
            fields.append(column)
            arrays.append(_reserved(column, samples, rows, blobs))
    for column in extras:
        if column.name in requested:
            values = [row.extras.get(column.name) for row in rows]
            fields.append(column)
            arrays.append(json_codec.decode(values, column) if is_declared else build_column(values, column))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _reserved(column: pa.Field, samples: Sequence[Sample], rows: list[Row], blobs: pa.Array) -> pa.Array:
    values: list[Any]
    match column.name:
        case "binary_content":
            return blobs
        case "sample_id":
            values = [sample.sample_id for sample in samples for _ in sample.rows]
        case "text_content":
            values = [row.text for row in rows]
        case "materialize_error":
            values = [row.error and row.error.message for row in rows]
        case name:
            values = [getattr(row, name) for row in rows]
    return pa.array(values, column.type)
