"""Detection of text that is not UTF-8: Parquet does not guarantee that strings are."""

from __future__ import annotations

import pyarrow as pa


def broken_rows(rows: pa.RecordBatch | pa.Table) -> dict[int, str]:
    """Return the rows with text that is not UTF-8, also inside lists, and the first such column of each."""
    broken: dict[int, str] = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if _has_text(column.type) and not _is_sound(column):
            for row in range(rows.num_rows):
                if row not in broken and not _is_sound(column.take(pa.array([row]))):
                    broken[row] = name
    return broken


def with_bytes(column: pa.Array) -> pa.Array:
    """Return the column with its text as bytes, without any check."""
    return column.cast(_as_bytes(column.type))


def _has_text(type_: pa.DataType) -> bool:
    return "string" in str(type_) or "json" in str(type_)


def _is_sound(column: pa.Array | pa.ChunkedArray) -> bool:
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _as_bytes(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_string(type_):
        return pa.binary()
    if pa.types.is_large_string(type_):
        return pa.large_binary()
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_as_bytes(type_.value_type)))
    if pa.types.is_large_list(type_):
        return pa.large_list(type_.value_field.with_type(_as_bytes(type_.value_type)))
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_as_bytes(field.type)) for field in type_])
    return type_
