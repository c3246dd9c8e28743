"""Type unification: one type for a column whose type differs between samples, files or shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pyarrow as pa

from mm_assets.interleaved.json_values import is_json, json_field
from mm_assets.interleaved.schema import REQUIRED_COLUMNS


def unify_fields(first: pa.Field, second: pa.Field) -> pa.Field:
    """Return a field whose type holds the values of both columns.

    null∪T is T; two integers or two floats give the wider one; int∪float is float64; anything else is JSON
    text. Whether integers are exact as float64 depends on the values: `align_table` raises `SchemaMismatch`
    for one that is not.
    """
    if first.type == second.type and is_json(first) == is_json(second):
        return first if first.nullable or not second.nullable else second
    for one, other in ((first, second), (second, first)):
        if pa.types.is_null(one.type):
            return other.with_nullable(True)
    if is_json(first) or is_json(second):
        return json_field(first.name)
    common = _common_type(first.type, second.type)
    return json_field(first.name) if common is None else pa.field(first.name, common)


def unify_schemas(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """Return the columns of all schemas, in the order first seen, each with its `unify_fields` type.

    A column that one of the schemas lacks becomes nullable, except for the required columns. There must be at
    least one schema.
    """
    merged: dict[str, pa.Field] = {}
    occurrences: Counter[str] = Counter()
    count = 0
    for schema in schemas:
        count += 1
        occurrences.update(schema.names)
        for field in schema:
            merged_field = merged.get(field.name)
            merged[field.name] = field if merged_field is None else unify_fields(merged_field, field)
    in_every_schema = {
        name for name, occurrence_count in occurrences.items() if occurrence_count == count
    }.union(REQUIRED_COLUMNS)
    return pa.schema(
        [field if name in in_every_schema else field.with_nullable(True) for name, field in merged.items()]
    )


def _common_type(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    types = [first, second]
    for large, short in ((pa.large_string(), pa.string()), (pa.large_binary(), pa.binary())):
        # A tuple, not a set: users' extension types may have no hash.
        if all(t in (large, short) for t in types):
            return large
    if all(pa.types.is_signed_integer(t) for t in types) or all(
        pa.types.is_unsigned_integer(t) for t in types
    ):
        return max(types, key=lambda t: t.bit_width)
    if all(pa.types.is_floating(t) for t in types):
        return max(types, key=lambda t: t.bit_width)
    if all(pa.types.is_signed_integer(t) or pa.types.is_floating(t) for t in types):
        return pa.float64()
    return None
