"""Tables of documents, in the column types that the documents declare."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import pyarrow as pa

from mm_assets.accounting.canonical.parts import RowPart
from mm_assets.accounting.canonical.tar_json import Document, Item
from mm_assets.interleaved import json_codec
from mm_assets.interleaved.digest import BLOBS
from mm_assets.interleaved.errors import ShardError
from mm_assets.interleaved.json_values import FieldTally, build_column, is_json
from mm_assets.interleaved.schema import INTERLEAVED_SCHEMA

_BYTES_AT_ONCE = 8 << 20
_RESERVED = [field for field in INTERLEAVED_SCHEMA if field.name != BLOBS]
# Errors of values that do not have their column's type, when they are converted to Arrow.
_MISFITS = (ValueError, TypeError, AttributeError, ArithmeticError, LookupError, pa.ArrowException)


def document_parts(documents: Iterable[Document], where: str) -> Iterator[RowPart]:
    """Yield the rows of documents, some megabytes at a time; no document of a table contradicts its types.

    A value that does not have its declared type keeps its own, in a table of its row.
    """
    group: list[Document] = []
    columns: dict[str, pa.Field] = {}
    filled = 0
    for document in documents:
        if not group or document.schema != group[-1].schema:
            own = _declared(document, where)
            if group and not all(
                own[name].equals(columns[name], True) for name in own.keys() & columns.keys()
            ):
                yield from _parts(group, columns, where)
                group, columns, filled = [], {}, 0
            columns = {**columns, **own} if own.keys() - columns.keys() else columns
        if filled > _BYTES_AT_ONCE:
            yield from _parts(group, columns, where)
            group, columns, filled = [], _declared(document, where), 0
        group.append(document)
        filled += document.nbytes
    if group:
        yield from _parts(group, columns, where)


def _declared(document: Document, where: str) -> dict[str, pa.Field]:
    try:
        return {column.name: column for column in declared_columns(document.schema)}
    except (ValueError, TypeError, OSError) as error:
        raise ShardError(
            f"{where}: sample {document.sample_id!r}: its json states no column types: {error}"
        ) from error


def _parts(group: list[Document], columns: dict[str, pa.Field], where: str) -> Iterator[RowPart]:
    rows = [(document.sample_id, item) for document in group for item in document.items]
    is_same = len({document.schema for document in group}) == 1
    fields = [column if is_same else column.with_nullable(True) for column in columns.values()]
    yield from _fitting(rows, pa.schema(fields), where)


def _fitting(rows: list[tuple[str, Item]], declared: pa.Schema, where: str) -> Iterator[RowPart]:
    """Yield the rows as one table if all values have their types, else as several."""
    try:
        table = _table(rows, declared, is_strict=len(rows) > 1)
    except _MISFITS as error:
        if len(rows) < 2:
            raise ShardError(f"{where}: sample {rows[0][0]!r}: {error}") from error
        middle = len(rows) // 2
        yield from _fitting(rows[:middle], declared, where)
        yield from _fitting(rows[middle:], declared, where)
        return
    yield RowPart(table, iter([[item.values.get(BLOBS) for _, item in rows]]))


def _table(rows: list[tuple[str, Item]], declared: pa.Schema, is_strict: bool) -> pa.Table:
    """Return the columns in their types, all but `BLOBS`.

    Where not ``is_strict``, a column whose values do not fit gets the type of these.
    """
    fields: list[pa.Field] = []
    arrays: list[pa.Array] = []
    for field in [*_RESERVED, *declared, *_undeclared(rows, declared)]:
        values: list[Any]
        if field.name == "sample_id":
            values = [sample_id for sample_id, _ in rows]
        elif field.name in INTERLEAVED_SCHEMA.names:
            values = [item.values.get(field.name) for _, item in rows]
        else:
            values = [item.extras.get(field.name) for _, item in rows]
        try:
            array = _array(values, field)
        except _MISFITS:
            if is_strict:
                raise
            field = _own_type(values, field.name)
            array = build_column(values, field)
        fields.append(field)
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _array(values: list[Any], field: pa.Field) -> pa.Array:
    expected = None if is_json(field) else _python_type(field.type)
    if expected is not None and not all(value is None or type(value) is expected for value in values):
        raise TypeError(
            f"column {field.name!r}: not all values are {expected.__name__}"
        )  # Arrow takes 5.0 for 5, true for 1.0
    if field.name in INTERLEAVED_SCHEMA.names:
        return pa.array(values, field.type)
    return json_codec.decode(values, field)


def _python_type(type_: pa.DataType) -> type | None:
    if pa.types.is_boolean(type_):
        return bool
    if pa.types.is_integer(type_):
        return int
    if pa.types.is_floating(type_):
        return float
    return str if pa.types.is_string(type_) or pa.types.is_large_string(type_) else None


def _undeclared(rows: list[tuple[str, Item]], declared: pa.Schema) -> list[pa.Field]:
    known = set(declared.names)
    names = dict.fromkeys(name for _, item in rows for name in item.extras if name not in known)
    return [_own_type([item.extras.get(name) for _, item in rows], name) for name in names]


def _own_type(values: list[Any], name: str) -> pa.Field:
    tally = FieldTally()
    for value in values:
        tally.observe(value)
    return tally.field(name)


@lru_cache(maxsize=64)
def declared_columns(text: str) -> pa.Schema:
    """Return the columns beyond the reserved ones, as a JSON document declares them.

    Raises:
        ValueError, TypeError or OSError: for a damaged declaration.
    """
    if not text:
        return pa.schema([])
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
