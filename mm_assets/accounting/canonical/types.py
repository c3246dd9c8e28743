"""Column types that rows are digested in."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa

from mm_assets.accounting.canonical.parts import BLOB_FIELD, RowPart
from mm_assets.interleaved import json_codec
from mm_assets.interleaved.buffers import is_bytes
from mm_assets.interleaved.errors import ShardError
from mm_assets.interleaved.json_values import is_json
from mm_assets.interleaved.schema import (
    REQUIRED_COLUMNS,
    RESERVED_COLUMNS,
    SchemaMismatch,
    align_table,
    canonical_schema,
)
from mm_assets.interleaved.text_validity import refuse_broken_text


def normalized(part: RowPart, location: str) -> RowPart:
    """Return rows with reserved columns in their canonical types, where lossless, without dictionaries.

    Raises:
        ShardError: text is not UTF-8, or the rows are no items: a required column is missing or has nulls,
            or a name occurs twice.
    """
    table, names = part.table, part.schema.names
    if len(set(names)) != len(names):
        raise ShardError(
            f"{location}: column {next(name for name in names if names.count(name) > 1)!r} occurs twice"
        )
    for name in REQUIRED_COLUMNS:
        if name not in names:
            raise ShardError(f"{location}: not interleaved data, column {name!r} is missing")
        if table.column(name).null_count:
            raise ShardError(f"{location}: column {name!r} is null in {table.column(name).null_count} rows")
    table = table.replace_schema_metadata(None)
    canonical = canonical_schema(table.schema)
    for index, field in enumerate(table.schema):
        target = canonical.field(field.name)
        if field.type != target.type:
            try:
                table = table.set_column(
                    index, target, table.column(index).cast(target.type, safe=not _is_text(field, target))
                )
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                continue  # the comparison reports the type as a difference
    refuse_broken_text(table, location)
    is_large = part.field.type == BLOB_FIELD.type  # otherwise only the offsets differ, not the bytes
    return replace(part, table=table, field=part.field if is_large else BLOB_FIELD)


def _is_text(field: pa.Field, target: pa.Field) -> bool:
    """Return whether bytes become text, which is looked at afterwards."""
    return is_bytes(field.type) and target.type == pa.string()


def retyped(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the same columns, with those of ``schema`` in its types; reserved columns stay as they are.

    JSON text becomes the values it holds.

    Raises:
        SchemaMismatch: a column does not fit; the message names it.
    """
    fields, columns = [], []
    for field, column in zip(table.schema, table.columns, strict=True):
        target = (
            schema.field(field.name)
            if field.name in schema.names and field.name not in RESERVED_COLUMNS
            else field
        )
        if is_json(field) and not is_json(target):
            column, field = _unpacked(column, target), target
        fields.append(target)
        columns.append((column, field))
    found = pa.Table.from_arrays(
        [column for column, _ in columns], schema=pa.schema([field for _, field in columns])
    )
    return align_table(found, pa.schema(fields))


def changes(schema: pa.Schema, other: pa.Schema) -> bool:
    """Return whether `retyped` to ``other`` changes a column of ``schema`` that can have values."""
    return any(
        (field.type, is_json(field)) != (other.field(field.name).type, is_json(other.field(field.name)))
        for field in schema
        if field.name in other.names
        and field.name not in RESERVED_COLUMNS
        and not pa.types.is_null(field.type)
    )


def _unpacked(column: pa.ChunkedArray, target: pa.Field) -> pa.ChunkedArray:
    try:
        values = [None if text is None else json.loads(text) for text in column.to_pylist()]
        return pa.chunked_array([json_codec.decode(values, target)], target.type)
    except (ValueError, TypeError, AttributeError, ArithmeticError, LookupError, RecursionError) as error:
        raise SchemaMismatch(
            f"column {target.name!r}: JSON text does not fit {target.type}: {error}"
        ) from error
