"""One type for a column whose type differs between samples, files or shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pyarrow as pa

from mm_assets.interleaved.json_values import is_json, json_field
from mm_assets.interleaved.schema import REQUIRED_COLUMNS


def unify_fields(first: pa.Field, second: pa.Field) -> pa.Field:
    """The type that both columns fit: null∪T is T, wider of two integers or floats, int∪float is float64,
    else JSON text.

    Whether integers are exact as float64 depends on values: `align_table` raises `SchemaMismatch` for one
    that is not.
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
    """Columns of all schemas, in the order first seen, each with its `unify_fields` type. At least one
    schema.

    A column that one of them lacks may be null, but for those that no row is without.
    """
    merged: dict[str, pa.Field] = {}
    found_in: Counter[str] = Counter()
    count = 0
    for schema in schemas:
        count += 1
        found_in.update(schema.names)
        for field in schema:
            known = merged.get(field.name)
            merged[field.name] = field if known is None else unify_fields(known, field)
    always = {name for name, found in found_in.items() if found == count}.union(REQUIRED_COLUMNS)
    return pa.schema(
        [field if name in always else field.with_nullable(True) for name, field in merged.items()]
    )


def _common_type(first: pa.DataType, second: pa.DataType) -> pa.DataType | None:
    numbers = [first, second]
    for large, short in ((pa.large_string(), pa.string()), (pa.large_binary(), pa.binary())):
        if all(
            t in (large, short) for t in numbers
        ):  # no set of types: those of users' extensions have no hash
            return large
    if all(pa.types.is_signed_integer(t) for t in numbers) or all(
        pa.types.is_unsigned_integer(t) for t in numbers
    ):
        return max(numbers, key=lambda t: t.bit_width)
    if all(pa.types.is_floating(t) for t in numbers):
        return max(numbers, key=lambda t: t.bit_width)
    if all(pa.types.is_signed_integer(t) or pa.types.is_floating(t) for t in numbers):
        return pa.float64()
    return None
