"""The interleaved schema: one row per item, and the rules that align any Arrow table to it.

The eight reserved columns come first, in fixed order and with fixed types. Every other column is passthrough:
kept as it is.

* `schema_to_text` writes a schema as text, for JSON, records and jobs: exact for every type and all metadata.
* `unify_fields` and `unify_schemas` find one type for a column whose type differs between samples, files or
  shards.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterable, Mapping

import pyarrow as pa

from mm_assets.model.errors import MmAssetsError, warn_user
from mm_assets.model.json_codec import is_json, json_field, to_json_text
from mm_assets.model.nested_types import filled_column, nulls, plain_type

__all__ = [
    "INTERLEAVED_SCHEMA",
    "RESERVED_COLUMNS",
    "SchemaMismatch",
    "align_table",
    "reconcile_schema",
    "resolve_schema",
]


INTERLEAVED_SCHEMA: pa.Schema = pa.schema(
    [
        pa.field("sample_id", pa.string(), nullable=False),
        pa.field("position", pa.int32(), nullable=False),
        pa.field("modality", pa.string(), nullable=False),
        pa.field("content_type", pa.string()),
        pa.field("text_content", pa.string()),
        pa.field("binary_content", pa.large_binary()),
        pa.field("source_ref", pa.string()),
        pa.field("materialize_error", pa.string()),
    ]
)
RESERVED_COLUMNS: tuple[str, ...] = tuple(INTERLEAVED_SCHEMA.names)

REQUIRED_COLUMNS: tuple[str, ...] = tuple(field.name for field in INTERLEAVED_SCHEMA if not field.nullable)

METADATA_POSITION = -1
MODALITIES = ("metadata", "text", "image")

# Types of which Arrow takes values that they do not hold, and formats then store others: a decimal of more
# digits, a date with a time of day, seconds beyond a day.
_LOOSE_TYPES = ("decimal", "date64", "time32[s")
_LARGE_OF = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


class SchemaMismatch(MmAssetsError, ValueError):
    """A column cannot be cast to its target type without loss; the message names the column."""


def reconcile_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with canonical types for reserved columns; passthrough columns keep their types.

    A reserved column that is already the large variant of its canonical type stays large, because casting
    64-bit offsets down can overflow. Passthrough columns lose their dictionary encoding, and map entries get
    their usual names. Order and field metadata are kept.
    """
    return pa.schema([_reconcile_field(field) for field in schema], metadata=schema.metadata)


def _reconcile_field(field: pa.Field) -> pa.Field:
    if field.name in RESERVED_COLUMNS:
        canonical = INTERLEAVED_SCHEMA.field(field.name)
        keep_large = field.type == _LARGE_OF.get(canonical.type)
        return canonical.with_type(field.type) if keep_large else canonical
    return field.with_type(
        plain_type(field.type.value_type if pa.types.is_dictionary(field.type) else field.type)
    )


def resolve_schema(
    schema: pa.Schema | None = None, schema_overrides: Mapping[str, pa.DataType | pa.Field] | None = None
) -> pa.Schema | None:
    """Merge the two schema arguments of readers and writers.

    Args:
        schema: Used if given, with a warning if both arguments are.
        schema_overrides: Types that replace or extend single columns of `INTERLEAVED_SCHEMA`. A field instead
            of a type sets what a type cannot express (see `json_codec.json_field`).

    Returns:
        The schema, or None if neither argument is set.
    """
    if schema is not None:
        if schema_overrides:
            warn_user("both schema= and schema_overrides= were given: schema= is used")
        return schema
    if not schema_overrides:
        return None
    merged = {field.name: field for field in INTERLEAVED_SCHEMA}
    for name, given in schema_overrides.items():
        if isinstance(given, pa.Field):
            merged[name] = given
        else:
            merged[name] = merged[name].with_type(given) if name in merged else pa.field(name, given)
    return pa.schema(list(merged.values()))


def align_table(table: pa.Table, target: pa.Schema) -> pa.Table:
    """Pad, reorder and cast ``table`` to exactly ``target``, which is not reconciled again.

    Missing columns become null, columns that are not in ``target`` are left out. Reserved columns are cast
    with ``safe=False``, passthrough columns with ``safe=True``.

    Raises:
        SchemaMismatch: A column does not fit its target type, for example on overflow, or as
            `refuse_misfits` does; the message names it.
    """
    if table.schema.equals(target, check_metadata=True):
        refuse_misfits(table)
        return table
    present = set(table.column_names)
    columns = [
        _cast(table.column(field.name), table.schema.field(field.name), field)
        if field.name in present
        else pa.chunked_array([nulls(table.num_rows, field.type)], type=field.type)
        for field in target
    ]
    aligned = pa.Table.from_arrays(columns, schema=target)
    refuse_misfits(aligned)
    return aligned


def refuse_misfits(table: pa.Table | pa.RecordBatch) -> None:
    """Refuse values that their own column's type does not hold.

    Raises:
        SchemaMismatch: There is one; the message names its column.
    """
    for name in loose_columns(table.schema):
        try:
            table.column(name).validate(full=True)
        except pa.ArrowInvalid as error:
            raise SchemaMismatch(f"column {name!r}: {str(error).split('Invalid: ')[-1]}") from error


def loose_columns(schema: pa.Schema) -> list[str]:
    """Return the columns that `refuse_misfits` looks at."""
    return [field.name for field in schema if any(name in str(field.type) for name in _LOOSE_TYPES)]


def _cast(column: pa.ChunkedArray, source: pa.Field, target: pa.Field) -> pa.ChunkedArray:
    if is_json(target) and not is_json(source) and not pa.types.is_null(source.type):
        return to_json_text(column, source).cast(target.type)
    if column.type.equals(target.type, check_metadata=True):
        return column
    if pa.types.is_dictionary(column.type):  # Arrow casts no dictionaries of structs and lists
        column = pa.chunked_array(
            [chunk.dictionary.take(chunk.indices) for chunk in column.chunks], column.type.value_type
        )
    try:
        return filled_column(column).cast(target.type, safe=target.name not in RESERVED_COLUMNS)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatch(
            f"column {target.name!r}: {column.type} does not fit {target.type}: {error}"
        ) from error


def order_columns(schema: pa.Schema) -> pa.Schema:
    """Return the schema with reserved columns in canonical order, then passthrough columns in given order."""
    reserved = [schema.field(name) for name in RESERVED_COLUMNS if name in schema.names]
    return pa.schema(
        reserved + [f for f in schema if f.name not in RESERVED_COLUMNS], metadata=schema.metadata
    )


def canonical_schema(schema: pa.Schema) -> pa.Schema:
    """Return our output schema for data of ``schema``: all reserved columns, then passthrough columns.

    Unlike `reconcile_schema` this casts ``large_string`` down to ``string``: batches are bounded by bytes, so
    their offsets fit, and the formats then agree on one type.
    """
    passthrough = [_reconcile_field(field) for field in schema if field.name not in RESERVED_COLUMNS]
    return pa.schema([*INTERLEAVED_SCHEMA, *passthrough])


def schema_to_text(schema: pa.Schema) -> str:
    """Return a schema as Arrow IPC in base64.

    Results are not cached by schema: two schemas that differ only in metadata, such as text and JSON text,
    are equal as keys.
    """
    return base64.b64encode(schema.serialize()).decode()


def schema_from_text(text: str) -> pa.Schema:
    """Return the schema that ``text`` was made from.

    Raises:
        ValueError: `schema_to_text` did not make ``text``.
    """
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


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
