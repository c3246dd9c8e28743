"""Types that the passthrough columns of one raw shard require."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from mm_assets.interleaved.json_values import FieldTally, is_json, json_field
from mm_assets.interleaved.schema import RESERVED_COLUMNS, canonical_schema
from mm_assets.interleaved.unify import unify_fields


@dataclass(frozen=True)
class RequiredType:
    """The type that some values of a column require.

    ``is_exact``: all integers among them are exact as float64.
    """

    field: pa.Field
    is_exact: bool = True

    def join(self, other: RequiredType) -> RequiredType:
        """Return the type that the values of both require.

        It is that of `unify_fields`, or JSON text where integers would not be exact.
        """
        joined = unify_fields(self.field, other.field)
        if pa.types.is_floating(joined.type) and not all(
            n.is_exact for n in (self, other) if pa.types.is_integer(n.field.type)
        ):
            joined = json_field(joined.name)
        return RequiredType(
            joined.with_nullable(self.field.nullable or other.field.nullable),
            self.is_exact and other.is_exact,
        )

    def holds(self, other: RequiredType) -> bool:
        """Return whether values that require ``other`` can be written in this type without loss."""
        return is_same_type(self.join(other).field, self.field)

    def clashes(self, other: RequiredType) -> bool:
        """Return whether only JSON text holds the values of both."""
        return not pa.types.is_null(self.field.type) and is_json(self.join(other).field)

    def described(self) -> str:
        """Return the type for messages, and what keeps it from becoming float64."""
        beyond = pa.types.is_integer(self.field.type) and not self.is_exact
        return type_name(self.field) + (" beyond 2^53" if beyond else "")


@dataclass(frozen=True)
class ShardColumns:
    """The passthrough columns of one shard.

    Attributes:
        tallies: kinds of values of the samples that declare no types.
        declared: types that the other samples declare.
        declared_ints: ranges of the integers in declared 64-bit columns; without them such integers count as
            exact.
    """

    tallies: Mapping[str, FieldTally] = field(default_factory=dict)
    declared: pa.Schema = field(default_factory=lambda: pa.schema([]))
    declared_ints: Mapping[str, FieldTally] = field(default_factory=dict)

    def rounded(self) -> ShardColumns:
        """Return columns that require the same types, and tell nothing else of the values."""
        return ShardColumns(
            {name: tally.rounded() for name, tally in self.tallies.items()},
            self.declared,
            {name: tally.rounded() for name, tally in self.declared_ints.items()},
        )

    def required_types(self) -> dict[str, RequiredType]:
        """Return the type that each column requires."""
        found = {}
        for column in passthrough(self.declared):
            ints = self.declared_ints.get(column.name, FieldTally())
            is_lossy = pa.types.is_floating(column.type) and not ints.ints_fit_float
            found[column.name] = RequiredType(
                json_field(column.name) if is_lossy else column, ints.ints_fit_float
            )
        for name, tally in self.tallies.items():
            required_type = RequiredType(tally.field(name), tally.ints_fit_float)
            found[name] = found[name].join(required_type) if name in found else required_type
        return found


def passthrough(schema: pa.Schema) -> list[pa.Field]:
    """Return the columns of our outputs for data of ``schema``, without the reserved ones."""
    return [f for f in canonical_schema(schema) if f.name not in RESERVED_COLUMNS]


def type_name(column: pa.Field) -> str:
    """Return a column's type for display."""
    return "json" if is_json(column) else str(column.type)


def is_same_type(one: pa.Field, other: pa.Field) -> bool:
    """Return whether two columns hold the same values in the same form: text and JSON text differ."""
    return one.type == other.type and is_json(one) == is_json(other)
