"""Rows of decoded samples, and the Arrow tables made of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from mm_assets.formats.webdataset.declared_types import DeclaredTypes
from mm_assets.formats.webdataset.resolve import ResolvedContent
from mm_assets.interleaved import json_codec
from mm_assets.interleaved.faults import Fault
from mm_assets.interleaved.json_times import RAW
from mm_assets.interleaved.json_values import FieldTally, build_column, dumps, is_json, json_field
from mm_assets.interleaved.schema import INTERLEAVED_SCHEMA, align_table, reconcile_schema
from mm_assets.interleaved.unify import unify_schemas


@dataclass(slots=True)
class Row:
    """One item before its bytes are read; ``binary`` is used when they were in the json itself.

    Where ``is_typed``, a missing content type is what the source says, else the bytes tell it.
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
    """The rows of one sample; ``declared`` holds the types of its passthrough columns when the json states
    them.

    ``room``: bytes that columns of declared types take while they are built. ``nbytes``: of the members with
    its texts and fields.
    """

    sample_id: str
    rows: list[Row]
    declared: DeclaredTypes | None = None
    room: int = 0
    nbytes: int = 0


class SchemaTally:
    """The passthrough columns of all samples of a tar: those ``declared``, and ``tallies`` of the values
    whose types no json states.

    ``declared_ints`` are the integers of declared 64-bit columns: whether they are exact as float64, where
    others have that, is told by their values.
    """

    def __init__(self) -> None:
        self.tallies: dict[str, FieldTally] = {}
        self.declared_ints: dict[str, FieldTally] = {}
        self._declared: dict[DeclaredTypes, None] = {}
        self._has_undeclared = False

    def observe(self, sample: Sample) -> None:
        if sample.declared is not None:
            self._declared[sample.declared] = None
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

    @property
    def declared(self) -> list[pa.Schema]:
        """All declared schemas, without dictionaries. A column that not all samples have can be null."""
        schemas = [declared.schema for declared in self._declared]
        return [
            reconcile_schema(pa.schema([self._relaxed(field, schemas) for field in schema]))
            for schema in schemas
        ]

    def _relaxed(self, field: pa.Field, schemas: list[pa.Schema]) -> pa.Field:
        if field.nullable or not (
            self._has_undeclared or any(schema.get_field_index(field.name) < 0 for schema in schemas)
        ):
            return field
        return field.with_nullable(True)

    def raw_schema(self) -> pa.Schema:
        """Types of the columns whose samples state none."""
        return pa.schema([tally.field(name) for name, tally in self.tallies.items()])

    def schema(self) -> pa.Schema:
        """The tar's columns: the union of all, with JSON text where integers meet floats and are not exact as
        such.
        """
        undeclared = (
            [self.raw_schema()] if self._has_undeclared else []
        )  # without samples it would stand for some that lack all columns
        joined = unify_schemas([*self.declared, *undeclared])
        return pa.schema([field if self._is_exact(field) else json_field(field.name) for field in joined])

    def _is_exact(self, field: pa.Field) -> bool:
        known = [
            tallies[field.name] for tallies in (self.tallies, self.declared_ints) if field.name in tallies
        ]
        return not pa.types.is_floating(field.type) or all(tally.ints_fit_float for tally in known)


# What values that are not as the json's own schema says may raise on their way into Arrow.
MISFITS = (ValueError, TypeError, AttributeError, ArithmeticError, LookupError, pa.ArrowException)


def misfit(sample: Sample, extras: pa.Schema, target: pa.Schema) -> str | None:
    """Why values of a sample do not fit its passthrough columns, or the same columns of ``target``; None when
    they do.
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
    """A value of another form than its type's may pass for one: two lists of one and three values pass for
    two of two.
    """
    declared.try_out(table)
    for name in declared.lax:
        given = [row.extras.get(name) for row in sample.rows]
        column = table.schema.field(name)
        if is_json(column) and not any(isinstance(value, dict) and RAW in value for value in given):
            continue
        found = json_codec.encode(table.column(name), column)
        if found != given and dumps(found) != dumps(given):  # equal, or both NaN
            raise ValueError(f"column {name!r}: not all values are of the form of {column.type!s:.200}")


def build_table(
    samples: Sequence[Sample], blobs: pa.Array, extras: pa.Schema, columns: Iterable[str]
) -> pa.Table:
    """A table of samples that share one passthrough schema. ``blobs`` is ``binary_content``, one value a row.

    Raises ``ValueError`` for a value that its declared type does not hold.
    """
    rows = [row for sample in samples for row in sample.rows]
    is_declared = bool(samples) and samples[0].declared is not None
    wanted = set(columns)
    arrays: list[pa.Array] = []
    fields: list[pa.Field] = []
    for column in INTERLEAVED_SCHEMA:
        if column.name in wanted:
            fields.append(column)
            arrays.append(_reserved(column, samples, rows, blobs))
    for column in extras:
        if column.name in wanted:
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
