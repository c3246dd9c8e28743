"""Mapping between Arrow types and those that Parquet can store, so that our files keep the types written.

Parquet has no seconds, no 64-bit dates and other names for list items. Arrow writes the original schema
beside the data, but restores only part of it. Lists and structs of nulls come back as broken arrays (Arrow
26): they are stored as booleans. Dictionaries inside other types are only read back when they are of text:
those of other values are stored as their values.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from mm_assets.interleaved import json_codec
from mm_assets.interleaved.nested_types import filled_column, with_children
from mm_assets.interleaved.schema_text import schema_from_text, schema_to_text

SCHEMA_VERSION = "1"
VERSION = "mm_assets:schema_version"
SHARD = "mm_assets:shard"  # the partition's name; the file's name may be only a digest of it
# The schema before nested types were replaced; only in files that have such types.
_ORIGINAL = "mm_assets:arrow_schema"
_ARROW = "ARROW:schema"
# What Arrow raises for a type that Parquet cannot store.
REFUSALS = (pa.ArrowNotImplementedError, pa.ArrowInvalid, OSError)


def stored_schema(schema: pa.Schema, shard: str) -> pa.Schema:
    """Return the schema to write: types that Parquet can store, schema version and shard in the metadata."""
    metadata = {**(schema.metadata or {}), VERSION: SCHEMA_VERSION, SHARD: shard}
    fields = [field.with_type(_storable(field.type)) for field in schema]
    if fields != list(schema):
        metadata[_ORIGINAL] = schema_to_text(schema)
    return pa.schema(fields, metadata=metadata)


def original_schema(file: pq.ParquetFile) -> pa.Schema:
    """Return the schema that a file of ours was written in; for files of other tools, `schema_with_enums`."""
    metadata = file.metadata.metadata or {}
    text = metadata.get(_ORIGINAL.encode()) or metadata.get(_ARROW.encode())
    if VERSION.encode() not in metadata or text is None:
        return schema_with_enums(file)
    return schema_from_text(text)


def schema_with_enums(file: pq.ParquetFile) -> pa.Schema:
    """Return the schema that Arrow reads, with text for columns of ENUM, which it takes for bytes."""
    leaves = map(file.schema.column, range(len(file.schema)))
    enums = {leaf.path for leaf in leaves if leaf.converted_type == "ENUM" and leaf.max_repetition_level == 0}
    return pa.schema(
        [
            f.with_type(pa.string()) if f.name in enums and pa.types.is_binary(f.type) else f
            for f in file.schema_arrow
        ],
        metadata=file.schema_arrow.metadata,
    )


def cast(column: pa.Array | pa.ChunkedArray, type_: pa.DataType) -> Any:
    """Cast a column without loss; whether bytes are UTF-8 is looked at by who reads the rows."""
    return pc.cast(column, options=pc.CastOptions(target_type=type_, allow_invalid_utf8=True))


def restore(table: pa.Table, target: pa.Schema) -> pa.Table:
    """Return a table read from a file in the types of `original_schema`."""
    if table.schema.equals(target, check_metadata=True):
        return table
    columns = [_restored(column, field) for column, field in zip(table.columns, target, strict=True)]
    return pa.Table.from_arrays(columns, schema=target)


def refused_column(rows: pa.Table) -> str:
    """Return ``"column 'x': "`` for the first column that Parquet cannot store; empty without one."""
    for name in rows.column_names:
        try:
            pq.write_table(rows.select([name]), pa.BufferOutputStream())
        except REFUSALS:
            return f"column {name!r}: "
    return ""


def _restored(column: pa.ChunkedArray, target: pa.Field) -> pa.ChunkedArray:
    if column.type.equals(target.type, check_metadata=True):
        return column
    stored = target.with_type(_storable(target.type))
    column = cast(filled_column(column), stored.type)
    if stored.type == target.type:
        return column
    # Arrow cannot cast to nulls, or to dictionaries of anything but text.
    return pa.chunked_array([json_codec.decode(json_codec.encode(column, stored), target)], target.type)


def _storable(type_: pa.DataType) -> pa.DataType:
    is_struct = pa.types.is_struct(type_)

    def storable(field: pa.Field) -> pa.Field:
        # Arrow 26 cannot read a fixed-size list that is never null inside a null struct.
        is_nullable = field.nullable or (is_struct and pa.types.is_fixed_size_list(field.type))
        return field.with_type(_storable_inside(field.type)).with_nullable(is_nullable)

    return with_children(type_, storable)


def _storable_inside(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_null(type_):
        return pa.bool_()
    if pa.types.is_dictionary(type_) and not (
        pa.types.is_string(type_.value_type) or pa.types.is_large_string(type_.value_type)
    ):
        return _storable_inside(type_.value_type)
    return _storable(type_)
