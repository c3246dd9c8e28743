"""Nested Arrow types: rebuilding them with other children, and the spelling that all formats preserve."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


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
