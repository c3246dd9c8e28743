"""Column types declared by a json, which are untrusted.

They are checked for the memory they need, and for support by our writers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mm_assets.formats.lance.storage_types import ARROW_TYPE, to_storage_schema
from mm_assets.formats.parquet_types import stored_schema
from mm_assets.formats.webdataset.layout import MAX_FIELDS, MAX_ROOM
from mm_assets.interleaved.json_values import is_json
from mm_assets.interleaved.schema import RESERVED_COLUMNS, canonical_schema, refuse_misfits
from mm_assets.interleaved.schema_text import schema_from_text, schema_to_text

SLOT = 16  # bytes of a value while its column is built: a Python reference, and a number or an offset
_WIDEST = 1 << 20  # bytes of one row of nulls: the rows of all other samples of the shard take as many
# Tuples, not sets: users' extension types may have no hash.
_JSON_TYPES = (pa.string(), pa.large_string(), pa.string_view())
# Arrow takes a value of these types unchanged, or not at all.
_STRICT_TYPES = (pa.null(), pa.bool_(), pa.float64(), pa.string(), pa.large_string())


@dataclass(frozen=True, eq=False)
class DeclaredTypes:
    """The passthrough columns that a json declares; one object per distinct text, compared by identity.

    ``row_bytes`` are the bytes of a row of nulls (see `width`). ``int64s`` has the names of columns whose
    integers may not be exact as float64. ``lax`` has the names of columns whose type would accept a value and
    change it.
    """

    schema: pa.Schema
    row_bytes: int
    int64s: tuple[str, ...]
    lax: tuple[str, ...]
    _wide_lists: tuple[pa.Field, ...]  # columns with lists of items wider than one value
    _has_required: bool  # some values must not be null
    _has_seconds: bool  # Parquet stores these as milliseconds

    def room(self, extras: Sequence[dict[str, Any]]) -> int:
        """Return the bytes that the columns take while built from these rows, if the values fit the types."""
        inside = sum(
            _listed_bytes([row.get(field.name) for row in extras], field.type) for field in self._wide_lists
        )
        return len(extras) * self.row_bytes + inside

    def try_out(self, table: pa.Table) -> None:
        """Check values as Parquet would.

        Raises:
            ValueError: There are nulls where none may be, values that their type does not hold, or seconds
                that do not fit 64 bits as milliseconds.
        """
        refuse_misfits(table)
        if self._has_required:
            table.cast(table.schema)
        if self._has_seconds:
            pq.write_table(table.cast(stored_schema(table.schema, "")), pa.BufferOutputStream())

    @cached_property
    def unwritable(self) -> str | None:
        """Reason why one of our writers would refuse these types and metadata, whatever the values.

        None if no writer would.
        """
        columns = (field for field in canonical_schema(self.schema) if field.name not in RESERVED_COLUMNS)
        return next(
            filter(None, (_unwritable(schema_to_text(pa.schema([field]))) for field in columns)), None
        )


@lru_cache(maxsize=4096)  # samples of one tar may state other columns each
def _unwritable(text: str) -> str | None:
    """Return why the one column of a schema cannot be written, None if it can."""
    schema = schema_from_text(text)
    (field,) = schema
    try:
        for inner in _with_inner(field):
            _refuse_odd(inner)
        to_storage_schema(schema)
        with pq.ParquetWriter(pa.BufferOutputStream(), stored_schema(schema, "")):
            pass
    except (ValueError, TypeError, OSError, pa.ArrowException) as error:
        return f"column {field.name!r}: {field.type!s:.200} cannot be written: {error}"
    return None


@lru_cache(maxsize=64)
def read_declared(text: str) -> DeclaredTypes:
    """Return the types that a json declares.

    Raises:
        ValueError, OSError, pa.ArrowException: The text is no schema, or its columns exceed what any sample
            needs.
    """
    schema = schema_from_text(text)
    fields = sum(1 for field in schema for _ in _with_inner(field))
    if fields > MAX_FIELDS:
        raise ValueError(f"it declares {fields} fields, at most {MAX_FIELDS}")
    if len({*schema.names, *RESERVED_COLUMNS}) != len(schema) + len(RESERVED_COLUMNS):
        raise ValueError(f"its column names are not unique: {schema.names}")
    total = 0
    for field in schema:
        total += max(width(inner.type) for inner in _with_inner(field))
        if total > _WIDEST:
            raise ValueError(
                f"column {field.name!r}: {field.type!s:.200}: "
                f"a row is wider than the {_WIDEST} bytes that are read"
            )
    return DeclaredTypes(
        schema,
        sum(width(field.type) for field in schema),
        tuple(field.name for field in schema if pa.types.is_int64(_plain(field.type))),
        tuple(
            field.name
            for field in schema
            if not (pa.types.is_integer(field.type) or field.type in _STRICT_TYPES) or is_json(field)
        ),
        tuple(field for field in schema if _has_wide_items(field)),
        any(not inner.nullable for field in schema for inner in _with_inner(field)),
        any("timestamp[s" in str(field.type) for field in schema),
    )


def is_readable(text: str, rows: int) -> bool:
    """Return whether a sample of so many rows, most without values, may declare these types."""
    try:
        return rows * read_declared(text).row_bytes <= MAX_ROOM
    except ValueError:
        return False


def width(type_: pa.DataType) -> int:
    """Return the bytes that a null of a type takes: all of a fixed-size type, every field of a struct."""
    type_ = _plain(type_)
    if pa.types.is_fixed_size_list(type_):
        return SLOT + int(type_.list_size) * width(type_.value_type)
    if pa.types.is_fixed_size_binary(type_):
        return SLOT + int(type_.byte_width)
    if pa.types.is_struct(type_):
        return SLOT + sum(width(field.type) for field in type_)
    return SLOT


def _refuse_odd(field: pa.Field) -> None:
    for key, value in (field.metadata or {}).items():
        if key == ARROW_TYPE or key.startswith(b"lance") or value.startswith(b"lance"):
            raise ValueError(f"metadata {key!r} is Lance's own")
        key.decode(), value.decode()  # Lance refuses metadata that is not UTF-8
    if is_json(field) and field.type not in _JSON_TYPES:
        raise ValueError("JSON text is no such type")
    if _takes_room(field.type) and not all(
        field.type.field(index).nullable for index in range(field.type.num_fields)
    ):
        raise ValueError("a row without it would have nulls where none may be")
    if pa.types.is_struct(field.type) and len({child.name for child in field.type}) != field.type.num_fields:
        raise ValueError("field names are not unique")


def _takes_room(type_: pa.DataType) -> bool:
    """Return True if a null of the type contains nulls."""
    return bool(pa.types.is_struct(type_) or pa.types.is_fixed_size_list(type_))


def _plain(type_: pa.DataType) -> pa.DataType:
    """Return the type of the values of an extension or a dictionary."""
    while True:
        if isinstance(type_, pa.BaseExtensionType):
            type_ = type_.storage_type
        elif pa.types.is_dictionary(type_):
            type_ = type_.value_type
        else:
            return type_


def _with_inner(field: pa.Field) -> Iterator[pa.Field]:
    """Yield a field and all fields inside its type.

    Keys of maps are never null, and count as nullable.
    """
    yield field
    type_ = _plain(field.type)
    if pa.types.is_map(type_):
        inner = [type_.key_field.with_nullable(True), type_.item_field]
    else:
        inner = [type_.field(index) for index in range(type_.num_fields)]
    for child in inner:
        yield from _with_inner(child)


def _has_wide_items(field: pa.Field) -> bool:
    types = [_plain(inner.type) for inner in _with_inner(field)]
    return any(_has_items(type_) and width(type_.field(0).type) > SLOT for type_ in types)


def _has_items(type_: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(type_)
        or pa.types.is_large_list(type_)
        or pa.types.is_fixed_size_list(type_)
        or pa.types.is_map(type_)
    )


def _listed_bytes(values: Sequence[Any], type_: pa.DataType) -> int:
    """Return the bytes that the items of all lists and maps inside JSON values of a type take.

    Values of other forms are ignored.
    """
    type_ = _plain(type_)
    if pa.types.is_struct(type_):
        present = [value for value in values if isinstance(value, dict)]
        return sum(_listed_bytes([value.get(field.name) for value in present], field.type) for field in type_)
    if not _has_items(type_):
        return 0
    inner = type_.field(0).type
    items = [item for value in values if isinstance(value, list) for item in value]
    if pa.types.is_map(type_):
        names = [field.name for field in inner]
        items = [dict(zip(names, item, strict=False)) for item in items if isinstance(item, list)]
    return len(items) * width(inner) + _listed_bytes(items, inner)
