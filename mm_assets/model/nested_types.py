"""Tools for Arrow types and arrays: nested types, bytes without a copy, text that is not UTF-8.

* Nested types are rebuilt with other children, or in the one spelling that all formats preserve.
* The values of binary arrays are views of Arrow's own buffers. `compact` copies them where a small part would
  keep a large buffer in memory.
* Text that is not UTF-8 is found at any depth: no file format guarantees that strings are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from mm_assets.model.errors import ShardError


def with_children(type_: pa.DataType, change: Callable[[pa.Field], pa.Field]) -> pa.DataType:
    """Return a struct, map or list type with ``change`` applied to its child fields; others as they are."""
    if pa.types.is_struct(type_):
        return pa.struct([change(field) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(change(type_.key_field), change(type_.item_field), keys_sorted=type_.keys_sorted)
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(change(type_.value_field), type_.list_size)
    if pa.types.is_large_list(type_):
        return pa.large_list(change(type_.value_field))
    if pa.types.is_list(type_):
        return pa.list_(change(type_.value_field))
    return type_


def is_text(type_: pa.DataType) -> bool:
    """Return True for text with 32- or 64-bit offsets."""
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def is_bytes(type_: pa.DataType) -> bool:
    """Return True for a binary type with 32- or 64-bit offsets."""
    return bool(pa.types.is_binary(type_) or pa.types.is_large_binary(type_))


def is_list(type_: pa.DataType) -> bool:
    """Return True for lists without a size, with 32- or 64-bit offsets."""
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_))


def value_type(type_: pa.DataType) -> pa.DataType:
    """Return the type of the values of an extension or a dictionary; any other type as it is."""
    while True:
        if isinstance(type_, pa.BaseExtensionType):
            type_ = type_.storage_type
        elif pa.types.is_dictionary(type_):
            type_ = type_.value_type
        else:
            return type_


def inner_types(type_: pa.DataType) -> Iterator[pa.DataType]:
    """Yield the `value_type` of a type, and of all types inside it."""
    type_ = value_type(type_)
    yield type_
    for at in range(type_.num_fields):
        yield from inner_types(type_.field(at).type)


def plain_type(type_: pa.DataType) -> pa.DataType:
    """Return the type with map entries named as Arrow does, items of fixed-size lists as Parquet does.

    At any depth. These names are not part of the data: Parquet returns others than were written, Arrow files
    drop those of maps, and Lance those of fixed-size lists (Arrow takes two with other names for unequal).
    """
    rebuilt = with_children(type_, _plain_field)
    # Arrow 26 casts lists of a size that hold the type null to lists that lack their values.
    if pa.types.is_fixed_size_list(rebuilt) and not _holds_nulls(rebuilt):
        return pa.list_(rebuilt.value_field.with_name("element"), rebuilt.list_size)
    if pa.types.is_map(rebuilt):
        return pa.map_(
            rebuilt.key_field.with_name("key"),
            rebuilt.item_field.with_name("value"),
            keys_sorted=rebuilt.keys_sorted,
        )
    return rebuilt


def _holds_nulls(type_: pa.DataType) -> bool:
    if pa.types.is_struct(type_) or pa.types.is_fixed_size_list(type_):
        return any(_holds_nulls(type_.field(at).type) for at in range(type_.num_fields))
    return bool(pa.types.is_null(type_))


def with_plain_items(type_: pa.DataType) -> pa.DataType:
    """Return a `plain_type` with the items of all lists named alike.

    `plain_type` keeps the names that Parquet (``element``) and Arrow (``item``) give those of lists without a
    size, because digests of rows state them.
    """
    rebuilt = with_children(plain_type(type_), lambda field: field.with_type(with_plain_items(field.type)))
    if pa.types.is_list(rebuilt):
        return pa.list_(rebuilt.value_field.with_name("element"))
    if pa.types.is_large_list(rebuilt):
        return pa.large_list(rebuilt.value_field.with_name("element"))
    return rebuilt


def nulls(length: int, type_: pa.DataType) -> pa.Array:
    """Return an array of nulls of any type.

    A non-nullable child field has some value under a null parent: Parquet takes nothing else.
    """
    return pa.array([None] * length, type_) if _has_required(type_) else pa.nulls(length, type_)


def filled_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return an equal column with some value in non-nullable child fields under a null parent, at any depth.

    Arrow leaves nulls there when it takes or reads a null parent, and refuses to write or cast them. Nulls
    under a parent that is there stay.
    """
    if not _needs_filling(column.type):
        return column
    return pa.chunked_array(list(map(_filled, column.chunks)), column.type)


def _filled(array: pa.Array) -> pa.Array:
    type_ = array.type
    if not _needs_filling(type_):
        return array
    gaps = array.is_null()
    if pa.types.is_struct(type_):
        children = [
            _filled_child(array.field(index), field, gaps) for index, field in enumerate(type_.fields)
        ]
        return pa.StructArray.from_arrays(children, fields=type_.fields, mask=gaps)
    if pa.types.is_fixed_size_list(type_):
        size = type_.list_size
        values = array.values.slice(array.offset * size, len(array) * size)
        inside = pa.array(np.repeat(gaps.to_numpy(zero_copy_only=False), size))
        values = _filled_child(values, type_.value_field, inside)
        return pa.FixedSizeListArray.from_arrays(values, type=type_, mask=gaps)
    offsets = pa.array(array.offsets.to_numpy())
    if pa.types.is_map(type_):
        return pa.MapArray.from_arrays(offsets, array.keys, _filled(array.items), type=type_, mask=gaps)
    make = pa.LargeListArray if pa.types.is_large_list(type_) else pa.ListArray
    return make.from_arrays(offsets, _filled(array.values), type=type_, mask=gaps)


def _filled_child(child: pa.Array, field: pa.Field, gaps: pa.Array) -> pa.Array:
    """Return the child with any value where its parent is null, if it may not be null itself."""
    child = _filled(child)
    if field.nullable or not child.null_count:
        return child
    if isinstance(child.type, pa.BaseExtensionType):
        storage = _filled_child(child.storage, field.with_type(child.type.storage_type), gaps)
        return pa.ExtensionArray.from_storage(child.type, storage)
    if pa.types.is_dictionary(child.type):
        values = child.dictionary if len(child.dictionary) else _anything(child.type.value_type)
        indices = _filled_child(child.indices, field.with_type(child.type.index_type), gaps)
        return pa.DictionaryArray.from_arrays(indices, values, ordered=child.type.ordered)
    rows = pa.array(np.arange(len(child), dtype=np.int64))
    return pa.concat_arrays([child, _anything(child.type)]).take(pc.if_else(gaps, len(child), rows))


def _anything(type_: pa.DataType) -> pa.Array:
    return pa.array([None], pa.struct([pa.field("", type_, nullable=False)])).field(0)


def _needs_filling(type_: pa.DataType) -> bool:
    if isinstance(type_, pa.BaseExtensionType):
        return False
    children = [type_.item_field] if pa.types.is_map(type_) else map(type_.field, range(type_.num_fields))
    return _has_required(type_) or any(_needs_filling(child.type) for child in children)


def _has_required(type_: pa.DataType) -> bool:
    if pa.types.is_map(type_) or not (pa.types.is_struct(type_) or pa.types.is_fixed_size_list(type_)):
        return False  # a null of these types has no child values
    children = [type_.field(index) for index in range(type_.num_fields)]
    return any(not child.nullable or _has_required(child.type) for child in children)


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(plain_type(field.type))


_MAX_KEPT_RATIO = 2  # bytes kept in memory per byte used
_SLACK = 1 << 16  # bytes kept in vain that are not worth a copy


def blob_array(offsets: npt.ArrayLike, data: pa.Buffer, is_valid: Sequence[bool]) -> pa.Array:
    """Return values that lie one after the other in a buffer as ``large_binary``, without a copy of them.

    Args:
        offsets: where each begins, and the end of the last.
        data: the buffer.
        is_valid: whether each is there, or null.
    """
    validity = None if all(is_valid) else pa.array(is_valid, pa.bool_()).buffers()[1]
    buffers = [validity, pa.py_buffer(np.ascontiguousarray(offsets, np.int64)), data]
    return pa.Array.from_buffers(pa.large_binary(), len(is_valid), buffers)


def binary_views(chunk: pa.Array) -> list[memoryview | None]:
    """Return one view into the array's own buffer per value, None for null.

    The views are valid as long as the array lives.
    """
    if chunk.null_count == len(chunk):
        return [None] * len(chunk)
    offset_format: Literal["q", "i"] = "q" if pa.types.is_large_binary(chunk.type) else "i"
    _, offset_buffer, data = chunk.buffers()
    offsets = (
        memoryview(offset_buffer).cast("B").cast(offset_format)[chunk.offset : chunk.offset + len(chunk) + 1]
    )
    payload = memoryview(data) if data is not None else memoryview(b"")
    valid = chunk.is_valid().to_pylist()
    return [payload[offsets[i] : offsets[i + 1]] if valid[i] else None for i in range(len(chunk))]


def take_rows(table: pa.Table, rows: npt.ArrayLike) -> pa.Table:
    """Return rows by their numbers, in the order given.

    Binary columns become slices of the original buffers: no image is copied, and the whole original buffer
    stays in memory (see `compact`).
    """
    indices = np.asarray(rows, np.int64)
    starts = np.flatnonzero(np.diff(indices, prepend=-2) != 1)
    runs = [
        (int(indices[start]), int(length))
        for start, length in zip(starts, np.diff(starts, append=len(indices)), strict=True)
    ]
    row_indices = pa.array(indices)
    return pa.Table.from_arrays(
        [
            _slices(column, runs)
            if is_bytes(column.type) or pa.types.is_string_view(column.type)  # Arrow's ``take`` has no views
            else column.take(row_indices)
            for column in table.columns
        ],
        schema=table.schema,
    )


def compact(table: pa.Table) -> pa.Table:
    """Return the same rows, copying binary columns that keep more than twice their own bytes in memory.

    A strict filter leaves few rows of many batches; without the copy each row would keep its batch alive.
    """
    for index, column in enumerate(table.columns):
        if (
            is_bytes(column.type)
            and column.get_total_buffer_size() > _MAX_KEPT_RATIO * column.nbytes + _SLACK
        ):
            copied = pa.chunked_array([pa.concat_arrays(column.chunks)])
            table = table.set_column(index, table.schema.field(index), copied)
    return table


def _slices(column: pa.ChunkedArray, runs: Sequence[tuple[int, int]]) -> pa.ChunkedArray:
    return pa.chunked_array(
        [chunk for start, length in runs for chunk in column.slice(start, length).chunks], column.type
    )


def refuse_broken_text(rows: pa.Table, where: str) -> None:
    """Refuse rows with text that is not UTF-8, in any column and at any depth.

    Args:
        rows: rows with the column ``sample_id``, or without it.
        where: what the rows were read from, in the message; may be empty.

    Raises:
        ShardError: There is such a row; the message names its sample and column.
    """
    if not (broken := broken_rows(rows)):
        return
    row, name = min(broken.items())
    sample = f"row {row}, "
    if "sample_id" in rows.column_names:
        ids = with_bytes(
            rows.column("sample_id").slice(row, 1).combine_chunks().cast(pa.large_string(), False)
        )
        sample = f"sample {(ids[0].as_py() or b'').decode('utf-8', 'backslashreplace')!r}, "
    prefix = f"{where}: " if where else ""
    raise ShardError(f"{prefix}{sample}column {name!r}: text that is not UTF-8")


def broken_rows(rows: pa.RecordBatch | pa.Table) -> dict[int, str]:
    """Return the rows with text that is not UTF-8, also inside lists, and the first such column of each."""
    broken: dict[int, str] = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        first = 0
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            if not _is_sound(chunk, unused=True):
                # Of a dictionary, only a value that no row has may be broken.
                for row in list(_broken_in(chunk, first)) or [first]:
                    broken.setdefault(row, name)
            first += len(chunk)
    return broken


def with_bytes(column: pa.Array) -> pa.Array:
    """Return the column with its text as bytes, without any check."""
    return column.cast(_as_bytes(column.type))


def _broken_in(array: pa.Array, first: int) -> Iterator[int]:
    if _is_sound(array):
        return
    if len(array) == 1:
        yield first
        return
    half = len(array) // 2
    yield from _broken_in(array.slice(0, half), first)
    yield from _broken_in(array.slice(half), first + half)


def _is_sound(array: pa.Array, unused: bool = False) -> bool:
    """Return whether all text in an array is UTF-8; with ``unused``, also dictionary values of no row."""
    type_ = array.type
    if len(array) == 0:
        return True
    if isinstance(type_, pa.BaseExtensionType):
        return _is_sound(array.storage, unused)
    if pa.types.is_dictionary(type_):
        values = array.dictionary if unused else array.dictionary.take(array.indices.unique())
        return _is_sound(values, unused)
    if pa.types.is_struct(type_):
        return all(_is_sound(child, unused) for child in array.flatten())
    if pa.types.is_map(type_):
        first, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return all(_is_sound(part.slice(first, end - first), unused) for part in (array.keys, array.items))
    if pa.types.is_nested(type_) and hasattr(array, "flatten"):  # lists of any kind
        return not any(map(_is_any_text, inner_types(type_))) or _is_sound(array.flatten(), unused)
    if not _is_any_text(type_):
        return True
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _is_any_text(type_: pa.DataType) -> bool:
    return is_text(type_) or bool(pa.types.is_string_view(type_))


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
